from start import *

begin()


def think():
    sleep(1000)  # HERE


if RANK == 1:
    dist.irecv(torch.ones(4), 2).wait()  # WAIT
elif RANK == 2:
    think()
dist.barrier()
