"""Data sets: what is in one, how it is cut into chunks, and how chunks become files. On both sides."""
