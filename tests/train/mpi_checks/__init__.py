"""What the MPI backend must do, as functions that every rank of one job calls: see run.py."""
