"""A rendezvous port that another program took."""
