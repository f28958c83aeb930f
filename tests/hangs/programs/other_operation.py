from start import *

begin()
if RANK == 1:
    dist.broadcast(torch.ones(10), 0)  # HERE
else:
    dist.all_reduce(torch.ones(10))  # WAIT
dist.barrier()
