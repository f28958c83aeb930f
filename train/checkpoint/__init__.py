"""Checkpoints that cannot be lost.

state.py takes the parts of a training and gives them back; names.py has names of parameters without wrappers,
plain.py what a checkpoint may hold, tree.py how a state is walked.

Whole checkpoints: files.py writes and reads the files of one folder, each complete or absent. agree.py
chooses the checkpoint that all hosts continue from, spread.py copies it to the hosts that lack it.
checkpoints.py uses them all.

Sharded ones, sharded.py: parts.py says which part of a tensor a rank has, shards.py has the files of a rank,
copies.py sends them to the neighbour that disks.py names, found.py finds the newest complete save on all
disks, and assembled.py puts tensors together from its files.
"""
