"""Data sets on their way to the hosts and back."""
