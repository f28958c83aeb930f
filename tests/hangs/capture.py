"""Runs seeded bugs for real and keeps what the hosts said of them: golden records for the unit tests.

    python -m tests.hangs.capture [--backend mpi] [PROGRAM ...]

Each verdict is printed beside what the table expects. tests/unit/test_why.py reads the records.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from muster.deploy.core.connect.cluster import Cluster, expect_ranks
from muster.deploy.core.connect.opener import access_beside
from muster.deploy.core.decode import from_json
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.why.gather import gather
from muster.deploy.features.why.hang_verdict import HangVerdict, explain
from muster.deploy.features.why.messages import Evidence
from muster.deploy.features.why.positions import Rank
from tests.hangs.table import HANGS, Hang
from tests.launching import Project, make_project
from tests.waiting import read_until

RECORDS = Path(__file__).parents[1] / "golden" / "hangs"
MOST_SECONDS = 60.0


def records_of(path: Path) -> list[Rank]:
    """The ranks of a record."""
    loaded = json.loads(gzip.decompress(path.read_bytes()))
    return [Rank(one["rank"], one["host"], from_json(Evidence, one["evidence"])) for one in loaded]


def keep(ranks: Sequence[Rank], path: Path) -> None:
    """Write the ranks as a record."""
    plain = [
        {"rank": one.number, "host": one.host, "evidence": asdict(one.evidence)}
        for one in ranks
        if one.evidence
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(plain).encode(), mtime=0))


def seen(
    project: Project,
    program: Path,
    backend: str,
    *,
    seconds: float,
    looks: int = 0,
    hosts: str = "localhost slots=3",
    launcher: str = "mpirun",
) -> tuple[list[Rank], HangVerdict]:
    """Launch a program on three ranks, and ask why it hangs until it does, for so many seconds at most.

    `looks`: stop after so many at ranks that have begun to work, two each second.
    `launcher`: torchrun imports PyTorch once more, so it is for the program that asks for it.
    """
    for source in program.parent.glob("*.py"):
        shutil.copy(source, project.path)
    (project.path / "hosts.txt").write_text(hosts)
    words = ["--launcher", launcher, "--env", f"HANG_BACKEND={backend}"]
    words += ["--script", program.name]
    with project.start(*words) as driver:
        try:
            job = re.search(r"job (\S+):", "".join(read_until(driver, "job ", 1)))
            assert job
            return _ask(job[1], project, seconds, looks)
        finally:
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=120)


def _ask(job: str, project: Project, seconds: float, looks: int) -> tuple[list[Rank], HangVerdict]:
    deadline = time.monotonic() + seconds
    hosts = project.path / "hosts.txt"
    os.environ["HOME"] = project.env["HOME"]
    with contextlib.closing(
        Cluster(hostfile.load(hosts), access_beside(hosts, "").open, facts=False)
    ) as cluster:
        cluster.connect()
        (host,) = cluster.channels
        expect_ranks(cluster.channels, dict.fromkeys(range(3), host))
        while True:
            ranks, problems = gather(job, cluster.channels)
            assert not problems, problems
            verdict = explain(ranks)
            begun = sum(len(one.evidence.entries) > 3 for one in ranks if one.evidence) == 3
            # Before, ranks that read PyTorch from a slow disk wait for each other too. In a healthy program
            # (`looks`) no hang may be seen at all.
            sure = (
                verdict.hang and len(ranks) == 3 and (begun or looks or verdict.kind in {"absent", "unmet"})
            )
            looks -= begun
            if sure or (begun and looks == 0) or time.monotonic() > deadline:
                return ranks, verdict
            time.sleep(0.5 if looks else 1.0)


def judge(hang: Hang, verdict: HangVerdict) -> list[str]:
    """What of a verdict is not as the table expects."""
    wrong = []
    if not verdict.hang:
        wrong.append("it is not called a hang")
    if verdict.kind != hang.kind:
        wrong.append(f"kind {verdict.kind}, not {hang.kind}")
    if verdict.culprits != hang.culprits:
        wrong.append(f"culprits {verdict.culprits}, not {hang.culprits}")
    if not any(operation in verdict.operation for operation in hang.operation.split("|")):
        wrong.append(f"operation {verdict.operation!r}, not {hang.operation!r}")
    if hang.lines("HERE") and not hang.lines("HERE") & {*verdict.where}:
        wrong.append(f"line {verdict.where}, not {hang.lines('HERE')}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    for one in HANGS:
        if (asked.programs and one.program not in asked.programs) or asked.backend not in one.backends:
            continue
        with tempfile.TemporaryDirectory(prefix="hang-") as folder:
            began = time.monotonic()
            found, said = seen(
                make_project(Path(folder) / "p"), one.path, asked.backend, seconds=MOST_SECONDS
            )
        keep(found, RECORDS / f"{one.program}-{asked.backend}.json.gz")
        wrong = judge(one, said)
        sys.stdout.write(
            f"{'ok   ' if not wrong else 'WRONG'} {one.program} {time.monotonic() - began:.0f} s\n"
        )
        if wrong:
            sys.stdout.write(f"{'; '.join(wrong)}\n{said}")
        sys.stdout.flush()
