from start import *

begin()


def prepare():
    sleep(1000)  # HERE


if RANK == 0:
    request = dist.irecv(torch.ones(4), 1)
    prepare()
elif RANK == 1:
    dist.recv(torch.ones(4), 0)  # WAIT
    dist.send(torch.ones(4), 0)
else:
    request = dist.irecv(torch.ones(4), 1)
    sleep(1)
    request.wait()  # WAIT
dist.barrier()
