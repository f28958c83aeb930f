"""A job on this host: its commands, its ranks, their end."""
