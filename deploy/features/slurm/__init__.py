"""Hosts that Slurm allocates: the allocation, its hosts, and what Slurm's programs report."""
