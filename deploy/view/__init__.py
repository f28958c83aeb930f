"""What people look at, made of the records of a run: pure, but for what reads the records and draws."""
