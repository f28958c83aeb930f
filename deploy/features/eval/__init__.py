"""An expression in running ranks."""
