"""What runs on the hosts alone: the driver sends it, and never imports it."""
