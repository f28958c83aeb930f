"""Files that a program wrote on its hosts."""
