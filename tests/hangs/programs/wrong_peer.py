from start import *

begin()
if RANK == 0:
    dist.send(torch.ones(4), 2)
elif RANK == 1:
    dist.recv(torch.ones(4), 0)  # WAIT
else:
    dist.recv(torch.ones(4), 0)
if RANK == 0:
    sleep(1000)  # HERE
dist.barrier()
