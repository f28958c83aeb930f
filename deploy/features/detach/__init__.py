"""A driver that continues on the head of its job."""
