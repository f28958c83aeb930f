"""`python -m muster.train`: a program made of the library, with its data sets and its network."""
