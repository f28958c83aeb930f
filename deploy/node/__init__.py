"""What runs on the nodes, by their own Python: standard library only, sent there by the driver."""
