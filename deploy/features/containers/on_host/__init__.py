"""The container in which a job's ranks run on this host."""
