"""Checkpoints that cannot be lost.

files.py writes and reads the files of one folder, each complete or absent. agree.py chooses the checkpoint
that all hosts continue from, spread.py copies it to the hosts that lack it, and state.py puts its contents
together. checkpoints.py uses them all. sharded.py has checkpoints of which every rank writes a part; parts.py
says which, and shards.py writes and reads them.
"""
