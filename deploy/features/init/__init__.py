"""The files of a new project."""
