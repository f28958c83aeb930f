"""Large files from this machine to hosts, and from host to host."""
