"""A data set on the practice cluster: over SSH, from node to node, into the ranks of a job."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

SIZE = 9_000_000
READ = """
import hashlib, os
root = os.path.join(os.environ["MUSTER_DATA"], "digits")
print(hashlib.sha256(open(os.path.join(root, "large"), "rb").read()).hexdigest(), len(os.listdir(root)))
try:
    open(os.path.join(root, "new"), "w")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.soak
def test_every_rank_reads_what_left_this_machine_once(project: Project, cluster: Cluster) -> None:
    folder = project.path.parent / "digits"
    folder.mkdir()
    content = os.urandom(SIZE)
    (folder / "large").write_bytes(content)
    for number in range(200):
        (folder / f"{number}.txt").write_text(f"{number}\n")
    try:
        done = project.muster("data.push", str(folder))
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-2]
        assert last.startswith("digits: on 3 of 3 hosts after ")
        assert SIZE / 1e6 <= float(last.split("; ")[1].split()[0]) < SIZE / 1e6 + 0.1, (
            "one copy, and a manifest"
        )

        (project.path / "read.py").write_text(READ)
        launched = project.launch("--script", "read.py", "--per-host", "1")
        assert launched.status == 0, launched.output
        for rank, host in enumerate(cluster.nodes):
            log = launched.folder / "logs" / f"rank-{rank:04d}@{host}.out"
            assert log.read_text().split() == [hashlib.sha256(content).hexdigest(), "201", "PermissionError"]

        (folder / "new.txt").write_text("new")
        assert "; 0.0 MB left this machine" in project.muster("data.push", str(folder)).stdout
        verified = json.loads(project.muster("data.verify", "digits", "--json").stdout)
        assert [answer["damaged"] for answer in verified.values()] == [[], [], []]
    finally:
        assert project.muster("data.remove", "digits").returncode == 0
    assert project.muster("data.list", "--include", "node2").stdout.startswith("no data sets")
