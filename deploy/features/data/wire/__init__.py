"""Data sets: their manifests, their chunks, and the files made of chunks. On both sides."""
