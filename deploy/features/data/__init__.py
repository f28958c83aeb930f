"""Data sets: push to the hosts, and pull from them."""
