"""A complete data-parallel training program: start reading at main.py."""
