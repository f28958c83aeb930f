"""Checkpoints that cannot be lost.

core.py has what whole and sharded ones share: who leads a disk, the newest to go on from, what is refused.
state.py takes the parts of a training and gives them back; parts.py says which part of a tensor a rank has.

Whole ones, checkpoints.py: files.py writes and reads the files of one folder, each complete or absent.
Sharded ones, sharded.py: shards.py has the files of a rank. spread.py sends files from host to host.
of_each_rank.py is for a part that differs between the ranks, as random_numbers.py does.
"""
