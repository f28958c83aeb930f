from start import *

begin()
for step in range(4 if RANK == 2 else 6):
    dist.all_reduce(torch.ones(100))  # WAIT
dist.barrier()  # HERE
