"""Networks to train, and networks by name to measure."""
