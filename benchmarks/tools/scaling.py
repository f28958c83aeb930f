"""How fast this cluster trains a known network: images per second, per device and in all, and how it scales.

    mpirun -np 4 python -m benchmarks.tools.scaling --arch resnet26 --batch-size 64
    torchrun --nproc-per-node 8 -m benchmarks.tools.scaling --arch resnet152 --use-syn --amp
    python -m benchmarks.tools.scaling --spawn 2 --arch mlp

resnet152 needs torchvision. Images are random numbers, so that no disk is measured. First rank 0 trains
alone, while the others wait; then all train together. A figure is the mean of some iterations of some
batches each, ± 1.96 times their standard deviation: 95 of 100 iterations lie there, if they are normally
distributed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from muster.deploy.features.bench.programs.tool import run
from muster.train.job.group import Job
from muster.train.job.hardware import wait_for_gpu
from muster.train.job.long_work import others_wait
from muster.train.options import LEARNING, OUTPUT, RankOptions, broken, option
from muster.train.replicas import synchronise
from muster.train.reporting.terminal import Terminal, headline

from .architectures import BUILT_IN, Architecture, architecture


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig(RankOptions):
    """Measure images per second, per device and in all, and how it scales."""

    arch: str = option(
        LEARNING, "resnet26", f"{', '.join(BUILT_IN)}, or a model of torchvision, such as resnet152"
    )
    batch_size: int = option(LEARNING, 32, "images per step PER DEVICE, unlike python -m muster.train")
    use_syn: bool = option(
        LEARNING, True, "synthetic images; there are no others, so this changes nothing", also=("--dummy",)
    )
    amp: bool = option(LEARNING, False, "compute in bfloat16 where that is safe (torch.autocast)")
    warm_up: int = option(OUTPUT, 10, "batches before the first that counts")
    iterations: int = option(OUTPUT, 10, "measurements")
    batches: int = option(OUTPUT, 10, "batches of each measurement")

    def wrong(self) -> list[str]:
        counts = {name: getattr(self, name) for name in ("batch_size", "warm_up", "iterations", "batches")}
        rules = [(f"--{name.replace('_', '-')}", n, n >= 1, "at least 1") for name, n in counts.items()]
        return [*broken(rules), *RankOptions.wrong(self)]


@dataclass(frozen=True, slots=True)
class Rate:
    """Images per second: the mean of some measurements, and 1.96 times their standard deviation."""

    mean: float
    spread: float

    def __str__(self) -> str:
        return f"{figure(self.mean)} ± {figure(self.spread)} img/s"

    def times(self, factor: float) -> Rate:
        return Rate(self.mean * factor, self.spread * factor)

    @classmethod
    def of(cls, rates: list[float]) -> Rate:
        return cls(statistics.fmean(rates), 1.96 * statistics.pstdev(rates))


def figure(rate: float) -> str:
    """Return `rate` with one decimal; below 10 with three: large networks take seconds an image on a CPU."""
    return f"{rate:.1f}" if rate >= 10 else f"{rate:.3f}"


def main() -> None:
    """Run the benchmark."""
    run("python -m benchmarks.tools.scaling", BenchmarkConfig, show)


def show(group: Job, config: BenchmarkConfig) -> int:
    """Measure rank 0 alone, then all ranks, and print the result; returns the exit status."""
    terminal = Terminal(group.ranks)
    built = architecture(config.arch)
    terminal.line(headline(group))
    terminal.line(describe(config, built, group))
    alone = Rate(0, 0)
    with others_wait(group):
        if group.rank == 0:
            alone = measure(config, group, [0])
    together = measure(config, group, list(range(group.world_size)))
    for line in report(config, group, alone, together):
        terminal.line(line)
    return 0


def measure(config: BenchmarkConfig, group: Job, members: list[int]) -> Rate:
    """Return images per second of the ranks `members` together."""
    torch.manual_seed(0)
    built = architecture(config.arch)
    network = built.network.to(group.device)
    model = synchronise(network, group) if len(members) == group.world_size else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(config.batch_size, *built.shape, device=group.device)
    labels = torch.randint(built.classes, (config.batch_size,), device=group.device)
    rates = []
    for number in range(config.iterations + 1):
        batches = config.batches if number else config.warm_up
        began = time.perf_counter()
        for _ in range(batches):
            _step(model, optimizer, images, labels, config.amp)
        wait_for_gpu(group.device)
        seconds = time.perf_counter() - began
        if len(members) > 1:
            (seconds,) = (total / len(members) for total in group.all_reduce_sum(seconds))
        rates.append(batches * config.batch_size * len(members) / seconds)
    return Rate.of(rates[1:])


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    amp: bool,
) -> None:
    optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=amp):
        loss = cross_entropy(model(images), labels)
    torch.autograd.backward(loss)
    optimizer.step()


def describe(config: BenchmarkConfig, built: Architecture, group: Job) -> str:
    """Describe the workload; the batch size is per device."""
    tensors = [each.numel() for each in built.network.parameters()]
    return (
        f"{config.arch}: {sum(tensors) / 1e6:.2f} million weights in {len(tensors)} tensors, "
        f"synthetic images {'x'.join(map(str, built.shape))}, batch {config.batch_size} per device, "
        f"{config.batch_size * group.world_size} in total"
    )


def report(config: BenchmarkConfig, group: Job, alone: Rate, together: Rate) -> list[str]:
    """Return the result as lines for people, and a last line for programs."""
    count = group.world_size
    efficiency = together.mean / (count * alone.mean) if alone.mean else 0.0
    return [
        f"one device alone    {alone}",
        f"per device          {together.times(1 / count)}",
        f"total of {count:<10} {together}",
        f"scaling efficiency  {efficiency:.1%}, total / ({count} x one device alone)",
        f"img_per_second={figure(together.mean)} per_device={figure(together.mean / count)} "
        f"efficiency={efficiency:.3f} ranks={count} batch_per_device={config.batch_size}",
    ]


if __name__ == "__main__":
    main()
