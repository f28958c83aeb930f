"""The cost of the recorder: step times of DDP with and without it, in turn.

    python benchmarks/recording.py --pairs 31
    python benchmarks/recording.py --width 0 --calls 1000 --steps 2    # nothing but small collectives
    python benchmarks/recording.py --start --pairs 41                  # the start of a rank without torch

Two jobs are alive at the same time, one with the recorder in its ranks and one without. They train in turn: a
block of steps each, in the order A B B A, so that slow changes of this machine affect both. A pair of blocks
gives a ratio of median step times, and one of processor times of all ranks, which other work on the machine
changes less. The spread is that between the quartiles. `--backend fake` sends nothing: there a call costs
least, and the difference is that of the recorder alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

DEPLOY = Path(__file__).parents[1] / "deploy"
IN_RANK = (DEPLOY / "core" / "agent" / "in_rank", DEPLOY / "features" / "why" / "in_rank")
PROGRAM = """
import json, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
backend, device = sys.argv[1:3]
width, batch, calls, steps = map(int, sys.argv[3:])
if backend == "fake":
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
else:
    dist.init_process_group(backend)
torch.manual_seed(0)
loss_sum = torch.zeros(1, device=device)
if width:
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.ones(batch, width, device=device)
def step():
    if width:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    for _ in range(calls):
        dist.all_reduce(loss_sum)
    if device != "cpu":
        torch.cuda.synchronize()
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
    """The median step of the slower rank, and the processor time of all, in seconds."""

    step: float
    cpu: float


class World:
    """The ranks of one job."""

    def __init__(self, words: list[str], ranks: int, folder: str, *, record: bool) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if record:
            common |= recording(folder)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words],
                env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]

    def wait(self) -> None:
        """Wait until the ranks are ready."""
        if {self._line(rank) for rank in self.ranks} != {"ready\n"}:
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


def recording(folder: str) -> dict[str, str]:
    """The environment of a rank that records into a folder."""
    path = os.pathsep.join([*map(str, IN_RANK), os.environ.get("PYTHONPATH", "")])
    return {"MUSTER_START": "muster_start", "MUSTER_AGENT": folder, "PYTHONPATH": path}


def measure(words: list[str], ranks: int, pairs: int) -> list[tuple[Block, Block]]:
    """Blocks without and with the recorder, by turns."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        plain, recorded = (World(words, ranks, folder, record=record) for record in (False, True))
        stack.callback(plain.close)
        stack.callback(recorded.close)
        for world in (plain, recorded):
            world.wait()
        taken = []
        for pair in range(pairs):
            if pair % 2:
                second = recorded.block()
                taken.append((plain.block(), second))
            else:
                taken.append((plain.block(), recorded.block()))
        return taken


def starts(pairs: int) -> list[tuple[float, float]]:
    """Seconds of a processor for a Python that does nothing, without and with the recorder."""

    def once(folder: str, record: str) -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = {**os.environ, **recording(folder), "RANK": "0", "MUSTER_START": "muster_start" * int(record)}
        subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        taken = [{record: once(folder, record) for record in ("01", "10")[pair % 2]} for pair in range(pairs)]
    return [(pair["0"], pair["1"]) for pair in taken]


def told(name: str, ratios: list[float]) -> str:
    """The middle and the spread of the ratios, in a line."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{name}: median ratio {middle:.3f}, quartiles {low:.3f} to {high:.3f} of {len(ratios)} pairs\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--start", action="store_true", help="measure the start of a rank without torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="gloo", help="gloo, nccl or fake")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--steps", type=int, default=40, help="of a block")
    parser.add_argument("--width", type=int, default=512, help="of the model; 0: none")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--calls", type=int, default=1, help="all_reduce of the program in each step")
    asked = parser.parse_args()
    if asked.start:
        taken = starts(asked.pairs)
        less, more = (statistics.median(times) * 1e3 for times in zip(*taken, strict=True))
        extra = statistics.median(with_it - plain for plain, with_it in taken) * 1e3
        sys.stdout.write(f"start without {less:.1f} ms, with {more:.1f} ms, median difference {extra:.1f} ms")
        sys.stdout.write(f", load {os.getloadavg()[0]:.1f}\n")
        sys.exit()
    words = [asked.backend, asked.device, *map(str, (asked.width, asked.batch, asked.calls, asked.steps))]
    ranks = 1 if asked.backend == "fake" else asked.ranks
    blocks = measure(words, ranks, asked.pairs)
    middle = statistics.median(plain.step for plain, _ in blocks)
    if not asked.width:
        calls = asked.calls * asked.steps * ranks
        less, more = (statistics.median(block.cpu for block in each) for each in zip(*blocks, strict=True))
        sys.stdout.write(f"processor time of a call in a rank: {less / calls * 1e6:.1f} µs, ")
        sys.stdout.write(f"recorded {more / calls * 1e6:.1f} µs\n")
    sys.stdout.write(f"a step without the recorder: {middle * 1e3:.1f} ms, load {os.getloadavg()[0]:.1f}\n")
    sys.stdout.write(told("step time", [with_it.step / plain.step for plain, with_it in blocks]))
    sys.stdout.write(told("processor time", [with_it.cpu / plain.cpu for plain, with_it in blocks]))
