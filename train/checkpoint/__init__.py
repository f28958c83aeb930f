"""Checkpoints that cannot be lost.

core.py has what whole ones (checkpoints.py, files.py) and sharded ones (sharded.py, shards.py) share.
state.py takes the parts of a training and gives them back, parts.py and of_each_rank.py what differs.
"""
