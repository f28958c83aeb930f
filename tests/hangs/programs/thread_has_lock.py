from start import *
import threading

begin()
lock = threading.RLock()


def save():
    with lock:
        sleep(1000)


def log():
    with lock:  # HERE
        pass


if RANK == 1:
    threading.Thread(target=save, name="writer", daemon=True).start()
    sleep(1)
    log()
dist.all_reduce(torch.ones(8))  # WAIT
