from start import *
import fcntl, os, tempfile

begin()
file = open(f"{tempfile.gettempdir()}/{os.environ['MUSTER_JOB']}.lock", "w")
if RANK == 0:
    fcntl.flock(file, fcntl.LOCK_EX)
dist.barrier()
if RANK == 2:
    fcntl.flock(file, fcntl.LOCK_EX)  # HERE
dist.all_reduce(torch.ones(8))  # WAIT
