from start import *
import time

begin()
while True:
    for _ in range(20):
        dist.all_reduce(torch.ones(1000))
        time.sleep(0.05)
    if RANK == 0:
        time.sleep(3 * PACE)
    dist.barrier()
