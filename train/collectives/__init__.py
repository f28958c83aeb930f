"""Every collective operation, run and checked: `python -m muster.train.collectives`, under any launcher.

operations.py says what each is and what must come out, measure.py runs one, main.py shows them.
"""
