"""A command or a file on every host at once."""
