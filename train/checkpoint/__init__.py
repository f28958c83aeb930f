"""Checkpoints that cannot be lost.

folder.py has the files of one folder, each whole or not there; agree.py which one all hosts continue from;
spread.py how the hosts that lack it get it; state.py what is in it; checkpoints.py puts these together.
"""
