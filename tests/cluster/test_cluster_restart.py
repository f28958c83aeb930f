"""A host is switched off in the middle of the training, which reaches the end it would have had."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.launching import FAB, ROOT, Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

ONE_DIGIT = 1 / 360  # of those held out: the sums of six ranks and of four differ in their last bits
AGAIN = """
import os, sys
print("attempt", os.environ["MUSTER_RESTART"], flush=True)
sys.exit(7 if os.environ["RANK"] == "5" and os.environ["MUSTER_RESTART"] == "0" else 0)
"""


@pytest.fixture
def node3_comes_back(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.start("node3")


@pytest.mark.usefixtures("node3_comes_back")
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_training_goes_on_without_the_host_that_was_lost(
    cluster: Cluster, tmp_path: Path, launcher: str
) -> None:
    words = ("--hosts", str(cluster.hosts_file), "--runs", str(tmp_path), "--launcher", launcher)
    again = ("--max-restarts", "2", "--min-hosts", "2")
    said = []
    with subprocess.Popen(
        [str(FAB), "launch", *words, *again], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if re.search(r"epoch +4/15", line) and len([one for one in said if "job 2" in one]) == 1:
                cluster.kill("node3")
        process.wait(60)
    output = "".join(said)
    assert process.returncode == 0, output
    assert re.search(r"node3: .*; restart [12] of 2 on node1, node2\n", output), output
    assert len(re.findall(r"epoch +1/15", output)) == 1, output  # it did not begin again
    found = re.fullmatch(rf"accuracy=(0\.\d+) ranks=4 hosts=2 .* launcher={launcher} .*\n", said[-1])
    assert found, said[-1]
    assert float(found.group(1)) == pytest.approx(0.9833, abs=ONE_DIGIT + 0.0001)
    (run,) = tmp_path.iterdir()
    result = json.loads((run / "result.json").read_text())
    assert result["hosts"] == ["node1", "node2"]
    assert result["earlier_attempts"][0]["hosts"] == ["node1", "node2", "node3"]
    last = result["attempt"]
    assert (run / "logs" / f"rank-0000@node1.restart-{last}.out").is_file()
    assert (run / "logs" / "rank-0000@node1.out").is_file()


def test_a_detached_job_starts_again_by_itself(project: Project) -> None:
    (project.path / "again.py").write_text(AGAIN)
    job = project.detach("--script", "again.py", "--max-restarts", "1")
    attached = project.fab("attach", job)
    assert attached.returncode == 0, attached.stderr
    assert "DONE    6 ranks on 3 hosts" in attached.stdout
    logs = project.fab("logs", job).stdout
    assert "[0 node1] attempt 0\n" in logs
    assert "rank 5 on node3: exit status 7; restart 1 of 1 on node1, node2, node3\n" in logs
    assert logs.count("attempt 1\n") == 6
