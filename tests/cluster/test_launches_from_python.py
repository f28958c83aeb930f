"""`from muster import launch, run` on three nodes, whose Python may be another version than the driver's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.striking import clean_at
from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

LIBRARY = """
import os, socket
def where(prefix):
    if prefix == "fail" and os.environ["RANK"] == "2":
        raise LookupError("of rank 2")
    return {prefix: (int(os.environ["RANK"]), socket.gethostname(), os.environ["MASTER_ADDR"])}
"""
PROGRAM = """
import sys
import library
from muster import MusterError, RankError, launch, run
FLAGS = {"hosts": "hosts.txt", "slots": "1", "start_timeout": 300}
for detach in (False, True):
    values = run(library.where, "x", detach=detach, **FLAGS)
    ranks, names, addresses = zip(*(value["x"] for value in values))
    assert ranks == (0, 1, 2) and len({*names}) == 3 and len({*addresses}) == 1, values
try:
    run(library.where, "fail", **FLAGS)
except RankError as error:
    assert (error.rank, error.host, error.type_name) == (2, "node3", "LookupError"), error
    assert 'library.py", line 5, in where' in error.traceback, error
try:
    assert run(lambda: sys.version_info[:2], **FLAGS) == [sys.version_info[:2]] * 3
except MusterError as error:  # before a rank starts
    assert not isinstance(error, RankError) and "comes from Python" in str(error), error
with launch("program.py", "wait", hosts="hosts.txt", detach=True, start_timeout=300) as job:
    assert job.state == "detached", job
print(job.result.state, len(job.result.ranks))
"""


@pytest.mark.soak
def test_functions_and_detached_jobs_run_on_three_hosts(project: Project, cluster: Cluster) -> None:
    (project.path / "library.py").write_text(LIBRARY)
    (project.path / "own.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "own.py"],
        cwd=project.path,
        env={**project.env, **cluster.env},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ended, ranks = done.stdout.splitlines()[-1].split()
    assert (ended, int(ranks) >= 3) == ("stopped", True), done.stdout
    clean_at(cluster, cluster.nodes)
