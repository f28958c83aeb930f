"""`muster top`: hosts and ranks live. Sources give records, history keeps them, the screen shows them."""
