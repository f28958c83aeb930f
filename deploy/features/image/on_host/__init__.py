"""Images of this host's container engine."""
