from start import *

begin()


def retry():
    while True:
        try:
            raise OSError("no such bucket")
        except OSError:
            sleep(1000)  # HERE


if RANK == 1:
    retry()
dist.all_reduce(torch.ones(8))  # WAIT
