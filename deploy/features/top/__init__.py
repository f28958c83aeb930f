"""`muster top`: hosts and ranks live. Sources give records, the history keeps them, the screen shows them."""
