"""Commands, files and clean-ups on this host."""
