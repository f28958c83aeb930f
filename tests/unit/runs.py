"""Folders of runs, written as a driver writes them: of any size, of any outcome, always the same."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

JOB = "20261120-120000-abcd"
BEGAN = 1795176000.0
HOSTILE = "<script>alert(1)</script> \x1b[31m ]]> <img src=http://evil.example/x>"


def write_run(
    root: Path,
    *,
    job: str = JOB,
    hosts: int = 2,
    slots: int = 2,
    seconds: float = 60.0,
    fails: bool = False,
    restarts: bool = False,
    ended: bool = True,
    sample_every: float = 2.0,
    lines: int = 3,
    steps: int = 20,
    launch: Mapping[str, Any] | None = None,
) -> Path:
    """A run that is done, or whose last rank fails; `restarts`: then it runs once more, and is done."""
    folder = root / job
    (folder / "logs").mkdir(parents=True)
    names = [f"node{number + 1:03d}" if hosts > 9 else f"node{number + 1}" for number in range(hosts)]
    places = [(rank, names[rank // slots]) for rank in range(hosts * slots)]
    attempts = [True, False] if restarts else [fails]
    results: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for number, failing in enumerate(attempts):
        at = BEGAN + number * (seconds + 2)
        told, result = _attempt(job, number, places, names, at, seconds, failing)
        events += told
        results.append(result)
        suffix = f".restart-{number}" if number else ""
        launched = {**_launch(job, number, names, slots), **(launch or {})}
        (folder / f"launch{suffix}.json").write_text(json.dumps(launched))
        (folder / f"plan{suffix}.txt").write_text(f"job {job}\n  env HF_TOKEN=***\n  run --api-key=s3cret\n")
        for rank, host in places:
            broken = failing and rank == places[-1][0]
            for stream in ("out", "err") if broken else ("out",):
                text = "".join(f"step {step} loss {1 / (step + 1):.4f}\n" for step in range(lines))
                text = f"Traceback\nValueError: {HOSTILE}\n" if stream == "err" else text
                (folder / "logs" / f"rank-{rank:04d}@{host}{suffix}.{stream}").write_text(text)
    last = results[-1] if ended else None
    _write(folder, "events.jsonl", events if ended else events[: 1 + 2 * len(places)])
    driver = {"host": "desk", "boot": "b", "pid": 1, "start": 1}
    record = {"job": job, "launcher": "torchrun", "hosts": names, "ranks": len(places), "detached": False}
    record |= {"attempt": len(attempts) - 1, "started": BEGAN, "driver": driver, "driver_folder": str(folder)}
    (folder / "job.json").write_text(json.dumps(record))
    if last:
        (folder / "result.json").write_text(json.dumps({**last, "earlier_attempts": results[:-1]}))
        (folder / "verdict.txt").write_text("\nDONE\n        note: the clock of node2 is odd\n")
    _write(folder, "metrics.jsonl", _epochs())
    _write(folder, "steps.jsonl", _steps(steps))
    _samples(folder, names, slots, seconds * len(attempts), sample_every)
    return folder


def _attempt(
    job: str,
    number: int,
    places: list[tuple[int, str]],
    names: list[str],
    at: float,
    seconds: float,
    fails: bool,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    events: list[dict[str, Any]] = []

    def tell(kind: str, when: float, **fields: Any) -> None:
        blank = dict.fromkeys(
            ("host", "rank", "local_rank", "code", "printed", "hosts", "ranks", "exit_status")
        )
        events.append(
            {"at": when, "type": kind, "job": job, "attempt": number, "text": "", **blank, **fields}
        )

    tell("attempt.started", at, hosts=names, ranks=len(places))
    for rank, host in places:
        began = at + 2 + (rank % 7) * 0.2
        tell("rank.started", began, host=host, rank=rank)
        tell("rank.printed", began + 1, host=host, rank=rank)
    over = at + (seconds * 2 / 3 if fails else seconds)
    bad = places[-1][0] if fails else None
    ranks = []
    for rank, host in places:
        code = 0 if not fails else 1 if rank == bad else -15
        end = over if rank == bad or not fails else over + 0.3
        tell("rank.ended", end, host=host, rank=rank, code=code, printed=end - (12 if rank == bad else 0.5))
        ranks.append({"rank": rank, "host": host, "local_rank": 0, "code": code, "ended": end})
    failure: dict[str, Any] | None = None
    if fails:
        tell("rank.failed", over, host=places[-1][1], rank=bad, text="exit status 1", exit_status=1)
        failure = {"kind": "rank", "rank": bad, "host": places[-1][1], "reason": "exit status 1"}
        failure |= {"time": over, "tail": ["Traceback\n", f"ValueError: {HOSTILE}"]}
    tell("attempt.ended", over + 1, exit_status=int(fails))
    result = {"job": job, "launcher": "torchrun", "attempt": number, "hosts": names, "ranks": ranks}
    result |= {"first_failure": failure, "started": at, "ended": over + 1, "exit_status": int(fails)}
    return events, result


def _launch(job: str, attempt: int, names: list[str], slots: int) -> dict[str, Any]:
    versions = {"python": "3.13.5", "torch": "2.6.0", "mpi4py": None, "mpi": "5.0.7", "cores": 8, "gpus": 0}
    return {
        "job": job,
        "attempt": attempt,
        "muster": "0.2.0",
        "driver_python": "3.13.5",
        "command": "muster launch --launcher torchrun train.py --lr 0.1 --token '***'",
        "commit": "3f2a" * 10,
        "clean": False,
        "program": "train.py",
        "args": ["--lr", "0.1", "--token", "***"],
        "launcher": "torchrun",
        "backend": "auto",
        "ranks": len(names) * slots,
        "env": {"LEVEL": "3", "HF_TOKEN": "***"},
        "options": {"start-timeout": 60.0, "stall-timeout": 0.0, "network": ""},
        "hosts": [
            {"name": name, "ranks": [*range(place * slots, (place + 1) * slots)], **versions}
            for place, name in enumerate(names)
        ],
        "code": {"root": "/home/ml/project", "files": {"train.py": "ab" * 32}},
    }


def _epochs() -> Iterable[dict[str, Any]]:
    return ({"epoch": epoch, "loss": 2 / epoch, "accuracy": 1 - 1 / (epoch + 1)} for epoch in range(1, 9))


def _steps(count: int) -> Iterable[dict[str, Any]]:
    for step in range(1, count + 1):
        loss = 2.3 * math.exp(-step / 90) + 0.05 * math.sin(step)
        yield {
            "step": step,
            "loss": loss,
            "lr": 0.1,
            "step_seconds": 0.05 + 0.002 * (step % 5),
            "samples_per_second": 1000.0 + step % 17,
            "gradient_norm": None,
        }


def _samples(folder: Path, names: list[str], slots: int, seconds: float, every: float) -> None:
    with (folder / "samples.jsonl").open("w") as file:
        for tick in range(int(seconds / every)):
            for number, name in enumerate(names):
                wave = 0.5 + 0.4 * math.sin(tick / 9 + number)
                sample = {"at": BEGAN + tick * every, "attempt": 0, "host": name, "cpu": wave, "swap": 0}
                sample |= {"memory": int(4e9 + 1e9 * wave), "memory_total": 16 << 30, "net_in": 1e6 * wave}
                sample |= {"net_out": 2e6 * wave, "disk_write": 1e5, "gpus": [], "temperature": None}
                file.write(json.dumps(sample) + "\n")


def _write(folder: Path, name: str, records: Iterable[Mapping[str, Any]]) -> None:
    (folder / name).write_text("".join(f"{json.dumps(record)}\n" for record in records))
