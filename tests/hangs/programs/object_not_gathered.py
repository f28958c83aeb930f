from start import *

begin()


def report():
    sleep(1000)  # HERE


if RANK == 0:
    report()
else:
    dist.all_gather_object([None] * SIZE, {"loss": RANK})  # WAIT
