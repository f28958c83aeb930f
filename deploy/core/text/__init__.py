"""Text for people: ranges, safe text, the screen, progress."""
