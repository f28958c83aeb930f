"""What this host knows of a stalled job."""
