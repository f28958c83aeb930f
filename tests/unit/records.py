"""Simulated records of a cluster: the same ones at each call, also for 256 hosts."""

from __future__ import annotations

from collections.abc import Iterator

from muster.deploy.core.connect.requests import Driver, JobState
from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample, TrainingSample
from muster.deploy.features.top.top_history import PrintedText, TopHistory, TopRecord

START = 1_763_800_000.0
EVERY = 2.0


def job(hosts: int, ranks: int, state: str = "running", **fields: object) -> JobState:
    """A job on so many hosts."""
    known = {
        **{"job": "20261122-101500-beef", "state": state, "launcher": "mpirun", "ranks": ranks, "attempt": 0},
        **{"detached": False, "started": START - 60, "ended": None, "exit_status": None, "why": ""},
        **{"last_line": "", "folder": "/runs/x", "driver": Driver("here", 7), "driver_folder": "/runs/x"},
        "hosts": tuple(f"node{number}" for number in range(hosts)),
    }
    return JobState(**{**known, **fields})  # type: ignore[arg-type]


def host_sample(number: int, turn: int, ranks_each: int = 2, gpus: int = 0) -> HostSample:
    """What a host does at a moment; every number follows from the host and the turn."""
    wave = ((turn * 3 + number * 5) % 16) / 16
    return HostSample(
        at=START + EVERY * turn,
        host=f"node{number}",
        cpus=64,
        load=3.5,
        cpu=round(wave, 4),
        memory=(40 + number % 7) << 30,
        memory_total=256 << 30,
        swap=0,
        net_in=1e6 * (number + 1),
        net_out=2048.0,
        disk_read=0.0,
        disk_write=512.0,
        shm=1 << 20,
        shm_total=1 << 30,
        gpus=tuple(
            GpuSample(index, "H100", 0.9, 70 << 30, 80 << 30, 612.0, 61.0, 1755.0, 0) for index in range(gpus)
        ),
        ranks=tuple(
            RankSample(number * ranks_each + local, 1.0 + wave, 3 << 30, 60, "R", 1024.0, 99.0)
            for local in range(ranks_each)
        ),
        training=TrainingSample(100 + turn, 2.25, 0.21) if number == 0 else None,
    )


def records(hosts: int, turns: int = 10, **options: int) -> Iterator[TopRecord]:
    """The records of a healthy job."""
    for turn in range(turns):
        for number in range(hosts):
            yield host_sample(number, turn, **options)
    for rank in range(hosts * options.get("ranks_each", 2)):
        host = f"node{rank // options.get('ranks_each', 2)}"
        yield PrintedText(rank, host, f"epoch 1 step 109 loss 2.25\nrank {rank} has had 109 batches\n")


def history(hosts: int, turns: int = 10, **options: int) -> TopHistory:
    """What is known when the last of these records was heard, at 100 s of the reader's clock."""
    known = TopHistory()
    known.take(job(hosts, hosts * options.get("ranks_each", 2)), 100.0)
    for record in records(hosts, turns, **options):
        known.take(record, 100.0)
    return known
