"""What a host removes, and what it finds in its memory."""
