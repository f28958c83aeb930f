"""Words and lines for people: ranges, safe text, the screen, progress."""
