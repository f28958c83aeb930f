"""What this host is, and whether it is fit."""
