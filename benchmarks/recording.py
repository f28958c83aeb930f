"""The cost of `--record`: step times of DDP with and without the recorder, in turn.

    python benchmarks/recording.py --pairs 31

Two jobs of two ranks are alive at the same time, one with the recorder in its ranks and one without. They
train in turn: a block of steps each, in the order A B B A, so that slow changes of this machine affect both.
A pair of blocks gives a ratio of median step times, and one of processor times of both ranks,
which other work on the machine changes less. The spread is that between the quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

IN_RANK = Path(__file__).parents[1] / "deploy" / "agent" / "job" / "in_rank"
RANKS = 2
PROGRAM = """
import json, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
width, batch, calls, steps = map(int, sys.argv[1:])
torch.manual_seed(0)
layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data, loss_sum = torch.ones(batch, width), torch.zeros(1)
def step():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    for _ in range(calls):
        dist.all_reduce(loss_sum)
for _ in range(5):
    step()
print("ready", flush=True)
for line in sys.stdin:
    taken, cpu = [], time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    print(json.dumps([sorted(taken)[steps // 2], time.process_time() - cpu]), flush=True)
"""


class Block(NamedTuple):
    """The median step of the slower rank, and the processor time of both, in seconds."""

    step: float
    cpu: float


class World:
    """The ranks of one job."""

    def __init__(self, words: list[str], folder: str, *, record: bool) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if record:
            path = os.pathsep.join([str(IN_RANK), os.environ.get("PYTHONPATH", "")])
            common |= {"MUSTER_RECORD": "1", "MUSTER_AGENT": folder, "PYTHONPATH": path}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words],
                env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        if [self._line(rank) for rank in self.ranks] != ["ready\n"] * RANKS:
            raise SystemExit("the ranks did not start")

    def block(self) -> Block:
        """Let the ranks train for a block of steps."""
        for rank in self.ranks:
            if rank.stdin:
                rank.stdin.write("go\n")
                rank.stdin.flush()
        told = [json.loads(self._line(rank)) for rank in self.ranks]
        return Block(max(step for step, _ in told), sum(cpu for _, cpu in told))

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    @staticmethod
    def _line(rank: subprocess.Popen[str]) -> str:
        return rank.stdout.readline() if rank.stdout else ""


def measure(words: list[str], pairs: int) -> list[tuple[Block, Block]]:
    """Blocks without and with the recorder, by turns."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        plain, recorded = (World(words, folder, record=record) for record in (False, True))
        stack.callback(plain.close)
        stack.callback(recorded.close)
        taken = []
        for pair in range(pairs):
            if pair % 2:
                second = recorded.block()
                taken.append((plain.block(), second))
            else:
                taken.append((plain.block(), recorded.block()))
        return taken


def told(name: str, ratios: list[float]) -> str:
    """The middle and the spread of the ratios, in a line."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{name}: median ratio {middle:.3f}, quartiles {low:.3f} to {high:.3f} of {len(ratios)} pairs\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--steps", type=int, default=40, help="of a block")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--calls", type=int, default=1, help="all_reduce of the program in each step")
    asked = parser.parse_args()
    blocks = measure(list(map(str, (asked.width, asked.batch, asked.calls, asked.steps))), asked.pairs)
    middle = statistics.median(plain.step for plain, _ in blocks)
    sys.stdout.write(f"a step without the recorder: {middle * 1e3:.1f} ms, load {os.getloadavg()[0]:.1f}\n")
    sys.stdout.write(told("step time", [with_it.step / plain.step for plain, with_it in blocks]))
    sys.stdout.write(told("processor time", [with_it.cpu / plain.cpu for plain, with_it in blocks]))
