from start import *
import os, signal

begin()
if RANK == 2:
    os.kill(os.getpid(), signal.SIGSTOP)  # HERE
dist.all_reduce(torch.ones(8))  # WAIT
