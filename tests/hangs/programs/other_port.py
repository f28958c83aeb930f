from start import *
import os

if RANK == 2:
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
dist.init_process_group("gloo")  # WAIT HERE
