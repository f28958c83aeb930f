from start import *
import time

begin()
while True:
    time.sleep(2.5 * PACE if RANK == 1 else 0.1)
    dist.all_reduce(torch.ones(1000))
