"""The demo and the practice cluster."""
