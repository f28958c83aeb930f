"""The node image: its versions, its build, its capabilities, and its push to hosts."""
