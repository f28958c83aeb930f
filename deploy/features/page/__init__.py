"""The page of a run: its records become values, and the values one HTML file."""
