"""Trains forever, in phases: in each phase one rank is slow in a part of its steps, or none is.

`PHASES` has a word for each phase: `input:2` makes rank 2 slow in its input, `balanced` nobody, and in
`computes` each rank needs a processor; `/ddp` after it reduces gradients as DDP does. Rank 0 prints `phase N` after thirty steps of phase N, and goes on to the next
phase when the file `go-N` is there.
"""

import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PART, DELAY = 0.01, 0.04  # seconds: what each part of a step takes, and a slow one more
GO = Path(os.environ["GO"])


def begin():
    if os.environ.get("BACKEND") == "mpi":
        from muster.train.mpi_backend import NAME, register

        register()
        dist.init_process_group(NAME)
    else:
        dist.init_process_group("gloo")


class Phase:
    def __init__(self, word, step=0):
        what, self.ddp = word.partition("/")[0], word.endswith("/ddp")
        self.kind, _, rank = what.partition(":")
        self.mine = rank == str(RANK)
        self.chance = random.Random(RANK)
        self.step = step

    def slow(self, part):
        time.sleep(PART)
        return self.mine and self.kind == part

    def read(self):
        if self.slow("input"):
            time.sleep(DELAY)  # input
        return torch.ones(2, 64)

    def forward(self):
        if self.slow("forward"):
            time.sleep(DELAY)  # forward

    def backward(self):
        if self.slow("backward"):
            time.sleep(DELAY)  # backward

    def update(self):
        if self.slow("optimizer"):
            time.sleep(DELAY)  # optimizer

    def odd(self):
        """What balanced programs do: a turn for each rank, noise, a checkpoint of rank 0 now and then."""
        if self.kind == "turns" and self.step % SIZE == RANK:
            time.sleep(DELAY)
        if self.kind == "computes":
            until = time.thread_time() + PART
            while time.thread_time() < until:
                sum(range(1000))
        if self.kind == "noise":
            time.sleep(self.chance.random() * DELAY / 2)
        if self.kind == "saves" and RANK == 0 and self.step % 10 == 0:
            time.sleep(3 * DELAY)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, value, phase):
        context.phase = phase
        phase.forward()
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        context.phase.backward()
        return gradient, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)

    def forward(self, value, phase):
        return self.second(Slow.apply(self.first(value), phase))


def train(model, phase):
    value = phase.read()
    phase.odd()
    if phase.ddp:
        model(value, phase).sum().backward()
    else:
        phase.forward()
        phase.backward()
        for size in (4096, 64, 1):
            dist.all_reduce(torch.ones(size))
    phase.update()


def main():
    begin()
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    for number, word in enumerate(os.environ["PHASES"].split(",")):
        phase, go = Phase(word), torch.zeros(1)
        while not go:
            phase.step += 1
            train(model, phase)
            go = torch.tensor([float(RANK == 0 and (GO / f"go-{number}").exists())])
            dist.broadcast(go, 0)
            if RANK == 0 and phase.step == 30:
                print(f"phase {number}", flush=True)


main()
