"""Large files on their way to this host, and from here to other hosts."""
