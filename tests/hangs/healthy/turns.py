from start import *
import time

begin()
step = 0
while True:
    step += 1
    time.sleep(1.5 * PACE if step % SIZE == RANK else 0.2)
    dist.all_reduce(torch.ones(1000))
