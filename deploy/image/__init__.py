"""The node image: which versions go together, its build, what it can do, and its way to the hosts."""
