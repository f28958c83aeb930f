"""Commands and files on this host."""
