from start import *
import queue

begin()
if RANK == 2:
    queue.Queue().get()  # HERE
dist.all_reduce(torch.ones(8))  # WAIT
