from start import *
import multiprocessing, os, signal

begin()


def tokenize(queue):
    os.kill(os.getpid(), signal.SIGKILL)


if RANK == 1:
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    fork.Process(target=tokenize, args=(queue,)).start()
    queue.get()  # HERE
dist.all_reduce(torch.ones(8))  # WAIT
