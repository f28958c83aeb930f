"""Disks of hosts that are full or start no programs: before a job, and under a rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cluster.start_faults import node3_on_tmpfs
from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

FILLS = """
import os, sys, time
if os.environ["RANK"] == "4":
    with open(os.path.expanduser("~/.muster/all-of-it"), "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError as error:
            print(error)
    for number in range(20000):
        print("line", number)
    sys.exit(int(sys.argv[1]))
if sys.argv[1] == "3":
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("launcher", "code"),
    [
        ("mpirun", "3"),
        *(pytest.param(*words, marks=pytest.mark.soak) for words in (("mpirun", "0"), ("torchrun", "3"))),
    ],
)
def test_a_full_disk_hides_no_end(project: Project, cluster: Cluster, launcher: str, code: str) -> None:
    (project.path / "fills.py").write_text(FILLS)
    with node3_on_tmpfs("exec,size=60m", project, cluster):
        done = project.launch("--launcher", launcher, "--script", "fills.py", f"--args={code}")
    assert done.status == int(code), done.output
    if code == "3":
        assert "FAILED  rank 4 on node3: exit status 3" in done.output
    log = (done.folder / "logs" / "rank-0004@node3.out").read_text().splitlines()
    assert log[-1] == "line 19999"
    assert "note: node3: no space left on the disk of /home/muster/.muster/" in done.output


@pytest.mark.soak
def test_a_home_without_programs_is_found_by_check_and_launch(project: Project, cluster: Cluster) -> None:
    with node3_on_tmpfs("noexec,size=200m", project, cluster):
        checked = json.loads(project.muster("check", "--json").stdout)
        launched = project.launch("--script", "program.py")
    errors = [(one["host"], one["id"]) for one in checked["findings"] if one["severity"] == "error"]
    assert errors == [("node3", "disk.noexec")]
    assert launched.status == 3
    assert "node3: cannot make the job's folder: /home/muster/.muster/jobs/" in launched.output
    assert "starts no programs (noexec)" in launched.output
