from start import *

begin()
group = dist.new_group([0, 1])
if RANK == 1:
    dist.all_reduce(torch.ones(8), group=group)  # WAIT
dist.all_reduce(torch.ones(8))  # HERE
