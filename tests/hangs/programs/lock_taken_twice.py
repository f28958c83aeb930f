from start import *
import threading

begin()
lock = threading.Lock()


def log():
    with lock:  # HERE
        pass


if RANK == 1:
    with lock:
        log()
dist.all_reduce(torch.ones(8))  # WAIT
