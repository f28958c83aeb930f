from start import *
import os

begin()
if RANK == 1:
    os._exit(0)
dist.all_reduce(torch.ones(8))  # WAIT
