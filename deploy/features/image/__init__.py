"""The node image: which versions work together, its build, its capabilities, and its push to hosts."""
