"""A data set on the practice cluster: over SSH, from node to node, into the ranks of a job."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import NODES, Cluster
from tests.launching import Project
from tests.packages import make_wheel, require

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


# -- `muster launch --requirements` on hosts that reach no index: the wheels come from here, host to host --


@pytest.fixture
def packaged(project: Project) -> Project:
    make_wheel(project.path / "wheels", "greeting", "1.5")
    require(project.path, "greeting")
    (project.path / "uses.py").write_text("import greeting, sys; print(greeting.VERSION, sys.prefix)\n")
    return project


@pytest.mark.soak
def test_hosts_without_an_index_get_the_packages_from_here_once(packaged: Project, cluster: Cluster) -> None:
    words = ("--requirements", "requirements.txt", "--system-torch", "--script", "uses.py")
    first = packaged.launch(*words)
    assert first.status == 0, first.output
    for node in NODES:
        assert f"{node}: 1 package, made in" in first.output
    printed = [log.read_text().split() for log in sorted((first.folder / "logs").glob("rank-*.out"))]
    assert len(printed) == 6
    assert {version for version, _ in printed} == {"1.5"}
    (prefix,) = {prefix for _, prefix in printed}
    listed = packaged.muster("env.list", "--json")
    assert {host: [*known] for host, known in json.loads(listed.stdout).items()} == {
        node: [prefix.rpartition("/")[2]] for node in NODES
    }
    cluster.exec("node2", ("rm", f"{prefix}/muster.json"))  # as if it had been interrupted there
    second = packaged.launch(*words)
    assert second.status == 0, second.output
    assert [node for node in NODES if f"{node}: 1 package, made in" in second.output] == ["node2"]
    removed = packaged.muster("env.remove")
    assert removed.stdout.count("1 environment removed") == 3, removed.stderr
