from start import *
import os, tempfile

begin()


def open_shard():
    path = tempfile.mkdtemp() + "/shard"
    os.mkfifo(path)
    open(path)  # HERE


if RANK == 0:
    open_shard()
dist.all_reduce(torch.ones(8))  # WAIT
