"""One training loop in plain DDP by hand, with muster.train, Hugging Face accelerate and Lightning Fabric.

    .venv/bin/pip install accelerate lightning-fabric
    .venv/bin/python benchmarks/trainers.py --rounds 9

Models are examples/gpt.py and the convolutional network of the other benchmarks, on two ranks of one thread
each, under torchrun. The loops train in one job, in turn (A B C D A B C D ...): a round of a loop is a few
steps after an uncounted step, and its time is that of the slowest rank. TrainingLoop's garbage collection in
fixed steps is then that of every loop. "CPU" is the processor time of both
ranks in it, which other work on the machine changes little. Start-up and memory are of separate jobs, in turn
as well: from the start of torchrun to the end of the second step, and the peak of resident
memory of rank 0. With TRAINERS_DEVICE=cuda there is a rank for each GPU, a GPT of GPT-2's size in bf16, and
memory is the peak of the GPU's. "Lines" are those of the loop: without model, data, imports and comments.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DEVICE = os.environ.get("TRAINERS_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
RANKS = torch.cuda.device_count() if ON_GPU else 2
STEPS = 4  # of a round
BATCH = {"gpt": 16 * RANKS if ON_GPU else 16, "resnet26": 32}  # samples of a step, of all ranks together
CONTEXT = 1024 if ON_GPU else 128  # tokens of a sample of the GPT
Data = TensorDataset


def workload(name: str) -> tuple[nn.Module, Data]:
    """Return a model, [n, ...] -> [n, classes], and samples for it."""
    torch.manual_seed(0)
    if name == "gpt":
        from gpt import GPT, Config, draw_weights  # noqa: PLC0415 - what one loop does not need, it does not load

        class Logits(GPT):
            """The GPT with its classes in the second dimension, as cross_entropy has them."""

            def forward(self, tokens: Tensor) -> Tensor:
                with torch.autocast(DEVICE, torch.bfloat16, enabled=ON_GPU):
                    return super().forward(tokens).transpose(1, 2)

        config = Config(layers=12, width=768, heads=12, context=CONTEXT) if ON_GPU else Config()
        model = Logits(config)
        draw_weights(model, config.layers)
        tokens = torch.randint(256, (2048, CONTEXT + 1))
        return model, TensorDataset(tokens[:, :-1], tokens[:, 1:])
    from tools.architectures import architecture  # type: ignore[import-not-found]  # noqa: PLC0415

    built = architecture(name)
    samples = 2048
    return built.network, TensorDataset(
        torch.randn(samples, *built.shape), torch.randint(built.classes, (samples,))
    )


def by_hand(model: nn.Module, data: Data, batch: int) -> Iterator[Tensor]:
    """Train in torch's own words."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if ON_GPU else "gloo")
    model = DistributedDataParallel(model.to(device))
    optimizer = AdamW(model.parameters(), lr=1e-4)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch // dist.get_world_size(), sampler=sampler, pin_memory=ON_GPU)
    for epoch in count():
        sampler.set_epoch(epoch)
        for pair in loader:
            inputs, targets = (each.to(device, non_blocking=True) for each in pair)
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield loss.detach()


def by_muster(model: nn.Module, data: Data, batch: int) -> Iterator[Tensor]:
    """Train with muster.train."""
    from muster.train import GlobalBatchSampler, process_group, synchronise  # noqa: PLC0415

    job = JOINED.enter_context(process_group()) if not JOB else JOB[0]
    model = synchronise(model, job)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    sampler = GlobalBatchSampler(
        samples=len(data), batch_size=batch, rank=job.rank, world_size=job.world_size
    )
    loader = DataLoader(data, batch_sampler=sampler, pin_memory=ON_GPU)
    for epoch in count():
        sampler.set_epoch(epoch)
        for pair in loader:
            inputs, targets = (each.to(job.device, non_blocking=True) for each in pair)
            optimizer.zero_grad()
            loss = job.global_mean(cross_entropy(model(inputs), targets, reduction="none"))
            loss.backward()
            optimizer.step()
            yield loss.detach()


def by_training_loop(model: nn.Module, data: Data, batch: int, *, own_mean: bool = False) -> Iterator[Tensor]:
    """Train with muster.train, in its TrainingLoop.

    `own_mean`: with the mean of each rank, as the loops without muster.train do.
    """
    from muster.train import GlobalBatchSampler, TrainingLoop, process_group, synchronise  # noqa: PLC0415

    job = JOINED.enter_context(process_group()) if not JOB else JOB[0]
    model = synchronise(model, job)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    sampler = GlobalBatchSampler(
        samples=len(data), batch_size=batch, rank=job.rank, world_size=job.world_size
    )
    loader = DataLoader(data, batch_sampler=sampler, pin_memory=ON_GPU)
    with TrainingLoop(job, {"model": model, "optimizer": optimizer}) as loop:
        for inputs, targets in loop.batches(loader, steps=10**9):
            optimizer.zero_grad()
            losses = cross_entropy(model(inputs), targets, reduction="none")
            loss = losses.mean() if own_mean else job.global_mean(losses)
            loss.backward()
            optimizer.step()
            loop.log(loss=loss, lr=1e-4, samples=batch)
            yield loss.detach()


def by_accelerate(model: nn.Module, data: Data, batch: int) -> Iterator[Tensor]:
    """Train with accelerate."""
    from accelerate import Accelerator  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    accelerator = Accelerator(cpu=not ON_GPU)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(data, batch // accelerator.num_processes, shuffle=True, pin_memory=ON_GPU)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            yield loss.detach()


def by_fabric(model: nn.Module, data: Data, batch: int) -> Iterator[Tensor]:
    """Train with Fabric."""
    name = "lightning_fabric" if find_spec("lightning_fabric") else "lightning.fabric"
    fabric = import_module(name).Fabric(accelerator=DEVICE, devices=RANKS, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(model, AdamW(model.parameters(), lr=1e-4))
    loader = fabric.setup_dataloaders(
        DataLoader(data, batch // fabric.world_size, shuffle=True, pin_memory=ON_GPU)
    )
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
            yield loss.detach()


LOOPS: dict[str, Callable[[nn.Module, Data, int], Iterator[Tensor]]] = {
    "DDP by hand": by_hand,
    "muster.train": by_muster,
    "its TrainingLoop": by_training_loop,
    "TrainingLoop, mean of each rank": partial(by_training_loop, own_mean=True),
    **({"accelerate": by_accelerate} if find_spec("accelerate") else {}),
    **({"Fabric": by_fabric} if find_spec("lightning_fabric") or find_spec("lightning") else {}),
}
JOINED = ExitStack()  # the process group that by_muster made
OUT = tempfile.mkdtemp()  # what TrainingLoop writes
MEMORY: dict[str, float] = {}  # MiB of a GPU, at most, that each loop adds
JOB: list[Any] = []  # the job that all loops share, where they train in one


def lines_of(loop: Callable[..., object]) -> int:
    """Count the lines of a loop that a user writes."""
    source = inspect.getsource(loop.func if isinstance(loop, partial) else loop)
    function: Any = ast.parse(source).body[0]
    body = source.splitlines()[function.body[1].lineno - 1 :]  # without its head and docstring
    return sum(bool(line.strip()) and "noqa: PLC0415" not in line for line in body)


def measure_steps(model: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return, for each loop, the milliseconds a step of each round, and those of processor time."""
    running = {title: loop(*workload(model), BATCH[model]) for title, loop in LOOPS.items()}
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in running}
    for number in range(rounds + 1):
        for title, steps in running.items():
            begin(title, first=number == 0)
            next(steps)
            finished()
            dist.barrier()
            began, used = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                next(steps)
            finished()
            taken = torch.tensor((time.perf_counter() - began) / STEPS * 1000, device=DEVICE)
            processor = torch.tensor((time.process_time() - used) / STEPS * 1000, device=DEVICE)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            dist.all_reduce(processor)
            if number > 0:  # the first round warms up
                times[title].append((float(taken), float(processor)))
            elif ON_GPU:
                MEMORY[title] = (torch.cuda.max_memory_allocated() - MEMORY[title]) / 2**20
    return times


def begin(title: str, *, first: bool) -> None:
    """Before a loop's first round, note what the others keep of a GPU's memory."""
    if first and ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        MEMORY[title] = torch.cuda.memory_allocated()


def finished() -> None:
    """Wait until the GPU has done all steps."""
    if ON_GPU:
        torch.cuda.synchronize()


def be_rank(model: str, only: str, rounds: int) -> None:
    """Be a rank of a job of this benchmark; rank 0 prints what it measured, as JSON."""
    torch.set_num_threads(1)
    if only:
        steps = LOOPS[only](*workload(model), BATCH[model])
        next(steps), next(steps)
        finished()
        measured: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB
        dist.barrier()
    else:
        from muster.train import process_group  # noqa: PLC0415

        JOB.append(JOINED.enter_context(process_group(backend="nccl" if ON_GPU else "gloo")))
        measured = {"times": measure_steps(model, rounds), "memory": MEMORY}
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(measured) + "\n")
        sys.stdout.flush()
    os._exit(0)  # all loops share a process group: none of them may wait for it to end


def job(*words: str) -> tuple[Any, float]:
    """Run a job of this program under torchrun; returns what rank 0 printed, and the seconds it took."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    began = time.perf_counter()
    done = subprocess.run(
        [*torchrun, __file__, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MUSTER_OUT": OUT, "TRAINERS_DEVICE": DEVICE},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def spread(row: Sequence[float], form: str = ".0f") -> str:
    """Return the median of `row` and its bounds."""
    return f"{statistics.median(row):{form}} ({min(row):{form}}-{max(row):{form}})" if row else "-"


def ratio(row: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of the ratios round by round: what slows the machine in a round slows both."""
    return f"{statistics.median(a / b for a, b in zip(row, others, strict=True)):.2f}"


def report(model: str, rounds: int, starts: int) -> Iterator[str]:
    """Measure a model, and yield the lines of its table."""
    together, _ = job("--model", model, "--rounds", str(rounds))
    times = together["times"]
    single: dict[str, list[tuple[float, float]]] = {title: [] for title in LOOPS}
    for _ in range(starts):
        for title, row in single.items():  # on a GPU, memory is what the loop added in the job of all
            row.append(job("--model", model, "--only", title))
    unit = BATCH[model] * (CONTEXT if model == "gpt" else 1)
    rate = "tokens/s" if model == "gpt" else "images/s"
    yield f"| {model} | ms a step (min-max) | ratio | CPU, ms | ratio | {rate} | lines | start-up, s | MiB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    first = [*zip(*times["DDP by hand"], strict=True)]
    for title, row in times.items():
        wall, processor = zip(*row, strict=True)
        yield (
            f"| {title} | {spread(wall)} | {ratio(wall, first[0])} | {spread(processor)} "
            f"| {ratio(processor, first[1])} | {unit / statistics.median(wall) * 1000:.0f} "
            f"| {lines_of(LOOPS[title])} | {spread([seconds for _, seconds in single[title]], '.1f')} "
            f"| {spread([together['memory'].get(title, memory) for memory, _ in single[title]])} |"
        )


def main() -> None:
    """Measure and print the tables, or be a rank of a job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--starts", type=int, default=3, help="jobs of each loop, for start-up and memory")
    parser.add_argument("--model", default="", choices=("", *BATCH))
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "RANK" in os.environ:
        be_rank(options.model, options.only, options.rounds)
    for model in [options.model] if options.model else BATCH:
        before = os.getloadavg()[0]
        table = "\n".join(report(model, options.rounds, options.starts))
        place = f"{RANKS} ranks on {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        load = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {options.rounds} rounds"
        sys.stdout.write(f"{place}, {load}\n\n{table}\n\n")


if __name__ == "__main__":
    main()
