"""A command, a file or a clean-up on every host at once."""
