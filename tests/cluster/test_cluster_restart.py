"""A host is switched off in the middle of the training, which reaches the end it would have had."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.launching import MUSTER, ONE_THREAD, ROOT, Project
from tests.waiting import PATIENCE

ONE_DIGIT = 1 / 360  # of those held out: the sums of three ranks and of two differ in their last bits
AGAIN = """
import os, sys
print("attempt", os.environ["MUSTER_RESTART"], flush=True)
sys.exit(7 if os.environ["RANK"] == "5" and os.environ["MUSTER_RESTART"] == "0" else 0)
"""


def lose_a_host(cluster: Cluster, runs: Path, launcher: str) -> str:
    """Train, switch a host off meanwhile, and reach the same accuracy; returns the job."""
    words = ("--hosts", str(cluster.hosts_file), "--runs", str(runs), "--launcher", launcher)
    again = (*ONE_THREAD, "--per-host", "1", "--max-restarts", "2", "--min-hosts", "2")
    said = []
    with subprocess.Popen(
        [str(MUSTER), "launch", *words, *again], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if re.search(r"epoch +4/15", line) and len([one for one in said if "job 2" in one]) == 1:
                cluster.kill("node3")
        process.wait(PATIENCE)
    output = "".join(said)
    assert process.returncode == 0, output
    assert re.search(r"node3: .*; restart [12] of 2 on node1, node2\n", output), output
    assert len(re.findall(r"epoch +1/15", output)) == 1, output  # it did not begin again
    found = re.fullmatch(rf"accuracy=(0\.\d+) ranks=2 hosts=2 .* launcher={launcher} .*\n", said[-1])
    assert found, said[-1]
    assert float(found.group(1)) == pytest.approx(0.9833, abs=ONE_DIGIT + 0.0001)
    (run,) = runs.iterdir()
    result = json.loads((run / "result.json").read_text())
    assert result["hosts"] == ["node1", "node2"]
    assert result["earlier_attempts"][0]["hosts"] == ["node1", "node2", "node3"]
    last = result["attempt"]
    assert (run / "logs" / f"rank-0000@node1.restart-{last}.out").is_file()
    assert (run / "logs" / "rank-0000@node1.out").is_file()
    return run.name


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MUSTER, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def node3_comes_back(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.start("node3")


@pytest.fixture
def one_home(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Other nodes, which share a home."""
    ports = {
        f"MUSTER_PORT{number}": str(int(cluster.env[f"MUSTER_PORT{number}"]) + 5) for number in (1, 2, 3)
    }
    files = os.pathsep.join((cluster.env["COMPOSE_FILE"], str(ROOT / "tests/cluster/shared-home.yaml")))
    hosts_file = tmp_path / "hosts.txt"
    hosts_file.write_text(cluster.hosts_file.read_text())
    muster_dir = tmp_path / ".muster"
    muster_dir.mkdir()
    name = f"{cluster.env['COMPOSE_PROJECT_NAME']}-home"
    env = {
        **cluster.env,
        **ports,
        "COMPOSE_FILE": files,
        "COMPOSE_PROJECT_NAME": name,
        "MUSTER_DIR": str(muster_dir),
    }
    nodes = Cluster(muster_dir, hosts_file, env)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.compose("down", "--volumes", "--timeout", "1")


@pytest.mark.usefixtures("node3_comes_back")
@pytest.mark.soak
def test_training_goes_on_without_the_host_that_was_lost(cluster: Cluster, tmp_path: Path) -> None:
    lose_a_host(cluster, tmp_path, "torchrun")


@pytest.mark.soak
def test_the_same_under_mpirun_where_hosts_share_a_home(one_home: Cluster, tmp_path: Path) -> None:
    job = lose_a_host(one_home, tmp_path / "runs", "mpirun")
    left = tmp_path / "left.txt"
    left.write_text("node1 slots=2\nnode2 slots=2\n")
    hosts = ("--hosts", str(left))
    listed = muster("status", *hosts, "--runs", str(tmp_path / "runs"))
    assert (listed.returncode, listed.stdout.count(job)) == (0, 1), listed
    cleaned = muster("clean", *hosts, "--older-than", "0", "--results")
    assert (cleaned.returncode, cleaned.stdout.count("1 job removed")) == (0, 1), cleaned
    assert one_home.exec("node2", ["ls", "/home/muster/.muster/jobs"]).stdout == ""


def test_a_detached_job_starts_again_by_itself(project: Project) -> None:
    (project.path / "again.py").write_text(AGAIN)
    job = project.detach("--script", "again.py", "--max-restarts", "1")
    attached = project.muster("attach", job)
    assert attached.returncode == 0, attached.stderr
    assert "DONE    6 ranks on 3 hosts" in attached.stdout
    logs = project.muster("logs", job).stdout
    assert "[5 node3] attempt 0\n" in logs  # the others may be stopped before they say a word
    assert "rank 5 on node3: exit status 7; restart 1 of 1 on node1, node2, node3\n" in logs
    assert logs.count("attempt 1\n") == 6
