"""The cost of samples: an agent's sampler on this host, and a driver that gets those of many hosts.

    python benchmarks/sampling.py host --seconds 60     # processor time of the sampler of a host
    python benchmarks/sampling.py driver --hosts 256    # processor time of a driver
    python benchmarks/sampling.py steps --seconds 120   # step times with and without samples, in turn

The first two print the share of one core. Nothing here needs torch or a network.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from muster.deploy.core.connect.reports import Event, of_frame
from muster.deploy.core.hosts.host_sample import SAMPLES
from muster.deploy.core.wire.frames import Frame
from muster.deploy.features.samples.driver import Sampled, SampleFile
from muster.deploy.features.samples.on_host.sampler import Sampler

EVERY = 2.0
VARIANTS = 5  # of the sample of each host: no two in a row are equal
STEP = """
import time
while True:
    began = time.perf_counter()
    sum(number * number for number in range(200_000))
    print(time.perf_counter() - began)
"""


def used() -> float:
    """Seconds of processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def host(seconds: float, ranks: int) -> str:
    """The share of a core that a sampler takes, which watches so many idle ranks."""
    sent: list[bytes] = []
    shells = [subprocess.Popen(["sh", "-c", "sleep 1000; :"]) for _ in range(ranks)]
    try:
        wrappers = {rank: shell.pid for rank, shell in enumerate(shells)}
        sampler = Sampler(lambda: wrappers, "/nonexistent", EVERY, lambda frame: sent.append(_line(frame)))
        began = used()
        time.sleep(seconds)
        share = (used() - began) / seconds
        sampler.close()
    finally:
        for shell in shells:
            shell.kill()
    size = sum(map(len, sent)) / max(1, len(sent))
    return f"{share:.2%} of a core for {ranks} ranks, {len(sent)} samples of {size:.0f} bytes"


def driver(hosts: int, seconds: float) -> str:
    """The share of a core that a driver takes for the samples of so many hosts."""
    chance = random.Random(7)  # noqa: S311  # no secret
    frames = [
        [(f"node{host}", _line({"event": "sample", "sample": _full(host, chance)})) for host in range(hosts)]
        for _ in range(VARIANTS)
    ]
    rounds = int(seconds / EVERY)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, SAMPLES)
        file = SampleFile(str(path), hosts)
        began = used()
        for turn in range(rounds):
            for name, line in frames[turn % VARIANTS]:
                event = Event(name, of_frame(json.loads(line)))
                _keep(file, event, turn * EVERY)
        took = used() - began
        file.close()
        size = path.stat().st_size
    share = took / (rounds * EVERY)
    each = size / (hosts * rounds)
    return f"{share:.1%} of a core for {hosts} hosts, {each:.0f} bytes of a file for each sample"


def steps(seconds: float, ranks: int, block: float = 1.0) -> tuple[float, float]:
    """How many times longer a step takes with samples, and the standard error of that.

    Every rank computes the same step again and again. Blocks without and with samples alternate in one run,
    in the order 0 1 1 0. Each block with samples is compared with its neighbour without: the ratio of their
    medians. What counts is the median of these ratios, so that neither what changes slowly on this machine
    nor a moment of other work is taken for an effect of samples. Each block begins with a sample: at 1 s a
    block there are twice as many as in a job.
    """
    work = [subprocess.Popen([sys.executable, "-uc", STEP], stdout=subprocess.PIPE) for _ in range(ranks)]
    wrappers = {rank: process.pid for rank, process in enumerate(work)}
    ratios = []
    try:
        for pair in range(max(2, round(seconds / block / 2))):
            order = (False, True) if pair % 2 == 0 else (True, False)
            medians = {sampled: _block(work, wrappers, block, sampled=sampled) for sampled in order}
            ratios.append(medians[True] / medians[False])
    finally:
        for process in work:
            process.kill()
    # The median's standard error is 1.25 times that of the mean where values are spread normally; the spread
    # is taken from the quartiles, which a few wild pairs do not move.
    low, _, high = statistics.quantiles(ratios, n=4)
    return statistics.median(ratios), 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5


def _block(
    work: list[subprocess.Popen[bytes]], wrappers: dict[int, int], seconds: float, *, sampled: bool
) -> float:
    """The median step of the first rank in a block."""
    sampler = Sampler(lambda: wrappers, "/nonexistent", EVERY, lambda frame: None) if sampled else None
    stream, until, taken = work[0].stdout, time.monotonic() + seconds, []
    while stream and time.monotonic() < until:
        taken.append(float(stream.readline()))
        for other in work[1:]:
            if other.stdout:
                other.stdout.readline()
    if sampler:
        sampler.close()
    return statistics.median(taken)


def _keep(file: SampleFile, event: Event, at: float) -> None:
    from dataclasses import replace  # noqa: PLC0415

    if isinstance(event.report, Sampled) and event.report.sample:
        file.add(replace(event.report.sample, at=1e9 + at, host=event.host))


def _line(frame: Frame) -> bytes:
    return json.dumps(frame).encode() + b"\n"


def _full(number: int, chance: random.Random) -> Frame:
    """A host with 8 GPUs and 8 ranks; what changes from sample to sample in a training is by chance."""

    def about(middle: float, digits: int = 1) -> float:
        return round(middle * chance.uniform(0.9, 1.0), digits)

    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory": 70 << 30, "memory_total": 80 << 30, "ecc": 0}
    rank = {"memory": 3 << 30, "threads": 60, "state": "R"}
    return {
        **{"cpus": 128, "load": about(9, 2), "cpu": about(0.08, 4), "memory_total": 1 << 40, "swap": 0},
        **{"memory": int(about(99 << 30)), "net_in": about(1.5e9), "net_out": about(1.4e9)},
        **{"disk_read": 0.0, "disk_write": about(4096.0), "shm": 1 << 30, "shm_total": 1 << 39},
        "temperature": 61.0,
        "gpus": [
            {
                "index": index,
                "utilisation": about(0.99, 2),
                "power": about(650, 2),
                "temperature": 60.0,
                **gpu,
            }
            for index in range(8)
        ],
        "ranks": [
            {"rank": 8 * number + index, "cpu": about(1.1, 3), "read": about(1e5), "written": 99.5, **rank}
            for index in range(8)
        ],
        "training": {"step": 12000 + number, "loss": about(2.345, 6), "step_seconds": about(0.21, 6)},
    }


def main() -> None:
    """Print the figure that was asked for."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("what", choices=("host", "driver", "steps"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hosts", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    if given.what == "steps":
        ratio, noise = steps(given.seconds, given.ranks)
        figure = f"{ratio - 1:+.2%} for a step with samples; standard error {noise:.2%}"
    else:
        figure = (
            host(given.seconds, given.ranks) if given.what == "host" else driver(given.hosts, given.seconds)
        )
    sys.stdout.write(f"{figure}\n")


if __name__ == "__main__":
    main()
