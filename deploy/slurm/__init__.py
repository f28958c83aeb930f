"""Hosts that Slurm allocates: the allocation, its hosts, and Slurm's own words about it."""
