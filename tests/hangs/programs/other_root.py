from start import *

begin()
dist.broadcast(torch.ones(1 << 20), 1 if RANK == 2 else 0)  # WAIT HERE
dist.barrier()
