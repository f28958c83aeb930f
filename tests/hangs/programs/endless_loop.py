from start import *

begin()


def solve():
    error = 1.0
    while error > 0:  # HERE
        error = error * 0.5 + 1  # HERE


if RANK == 2:
    solve()
dist.all_reduce(torch.ones(8))  # WAIT
