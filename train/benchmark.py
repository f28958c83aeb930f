"""How fast this cluster trains a known network: images per second, per device and in all, and how it scales.

    mpirun -np 4 python -m muster.train.benchmark --arch resnet26 --batch-size 64
    torchrun --nproc-per-node 8 -m muster.train.benchmark --arch resnet152 --use-syn --amp  # with torchvision
    python -m muster.train.benchmark --spawn 2 --arch mlp --sync ddp

Images are made up, so that no disk takes part. First rank 0 trains alone, while the others sleep; then all
train together. A figure is the mean of some iterations of some batches each, ± 1.96 times their standard
deviation: where 95 of 100 iterations lie, if they are normally distributed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from .architectures import BUILT_IN, Architecture, architecture
from .config import (
    LEARNING,
    OUTPUT,
    SYNC,
    RankOptions,
    broken,
    compression_without_mpi4py,
    option,
    parse,
)
from .failure import fail_together
from .group import Group, process_group
from .hardware import use_fair_share_of_cores
from .progress import Progress
from .ranks import Ranks
from .report import headline
from .spawn import spawn
from .sync import COMPRESSIONS, WAYS, synchronise
from .sync.protocol import Sync


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
    sync: str = option(SYNC, "ddp", "as in python -m muster.train", choices=WAYS)
    compress: str = option(SYNC, "none", "as in python -m muster.train", choices=COMPRESSIONS)
    warm_up: int = option(OUTPUT, 10, "batches before the first that counts")
    iterations: int = option(OUTPUT, 10, "measurements")
    batches: int = option(OUTPUT, 10, "batches of each measurement")

    def wrong(self) -> list[str]:
        counts = {name: getattr(self, name) for name in ("batch_size", "warm_up", "iterations", "batches")}
        rules = [(f"--{name.replace('_', '-')}", n, n >= 1, "at least 1") for name, n in counts.items()]
        compression = compression_without_mpi4py(self.compress, self.sync)
        return [*broken(rules), *compression, *RankOptions.wrong(self)]


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
    """Run the benchmark; failure.py says with which exit status it ends."""
    with fail_together():
        config = parse(BenchmarkConfig, "python -m muster.train.benchmark", sys.argv[1:])
        if config.spawn:
            sys.exit(spawn(run_rank, config.spawn, config))
        run_rank(Ranks.from_env(os.environ, config.launcher), config)


def run_rank(ranks: Ranks, config: BenchmarkConfig) -> None:
    """Be one rank of the job: first rank 0 alone, then all."""
    use_fair_share_of_cores(ranks)
    with process_group(ranks, backend=config.backend, init=config.init, timeout=config.patience) as group:
        progress = Progress(ranks, os.environ)
        built = architecture(config.arch)
        progress.line(f"{headline(group)}, --sync {config.sync}")
        progress.line(describe(config, built, group))
        alone = Rate(0, 0)
        if group.rank == 0:
            alone = measure(replace(config, sync="none", compress="none"), group, [0])
        dist.barrier()
        together = measure(config, group, list(range(group.world_size)))
        for line in report(config, group, alone, together):
            progress.line(line)


def measure(config: BenchmarkConfig, group: Group, members: list[int]) -> Rate:
    """Return images per second of `members` together; of a rank alone there is nobody to wait for."""
    torch.manual_seed(0)
    built = architecture(config.arch)
    network = built.network.to(group.device)
    sync = synchronise(network, group, config.sync, torch.optim.SGD, compress=config.compress, lr=0.01)
    images = torch.randn(config.batch_size, *built.shape, device=group.device)
    labels = torch.randint(built.classes, (config.batch_size,), device=group.device)
    rates = []
    for number in range(config.iterations + 1):
        batches = config.batches if number else config.warm_up
        began = time.perf_counter()
        for _ in range(batches):
            _step(sync, images, labels, config.amp)
        if group.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        if len(members) > 1:
            (seconds,) = (total / len(members) for total in group.all_reduce_sum(seconds))
        rates.append(batches * config.batch_size * len(members) / seconds)
    return Rate.of(rates[1:])


def _step(sync: Sync, images: torch.Tensor, labels: torch.Tensor, amp: bool) -> None:
    sync.optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=amp):
        loss = cross_entropy(sync.model(images), labels)
    torch.autograd.backward(loss)
    sync.finish()
    sync.optimizer.step()


def describe(config: BenchmarkConfig, built: Architecture, group: Group) -> str:
    """Say what is measured, and of what the batch size is one."""
    tensors = [each.numel() for each in built.network.parameters()]
    return (
        f"{config.arch}: {sum(tensors) / 1e6:.2f} million weights in {len(tensors)} tensors, "
        f"synthetic images {'x'.join(map(str, built.shape))}, batch {config.batch_size} per device, "
        f"{config.batch_size * group.world_size} in total"
    )


def report(config: BenchmarkConfig, group: Group, alone: Rate, together: Rate) -> list[str]:
    """Return the result, for people, and a last line for programs."""
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
