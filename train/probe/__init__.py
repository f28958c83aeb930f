"""What this very cluster supports, measured: `python -m muster.train.probe`, under any launcher.

cells.py says what is measured; apart.py measures it in processes of their own, which may hang or die;
inside.py in this one, where MPI allows no other; table.py shows it.
"""
