from start import *
import subprocess

begin()
if RANK == 0:
    subprocess.run(["sleep", "1000"])  # HERE
dist.barrier()  # WAIT
