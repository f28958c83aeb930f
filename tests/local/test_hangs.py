"""Real jobs that stall: the verdict of a launch says why, and `muster why` does while they run."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.hangs.capture import judge, seen
from tests.hangs.table import HEALTHY, Hang, in_setting
from tests.launching import Launched, Project
from tests.waiting import PATIENCE, read_until, wait_until

# Rank 0 waits for rank 1 in a collective.
HANGS_IN_TORCH = """
import os, time
import torch, torch.distributed as dist
def read_shard():
    time.sleep(1000)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if os.environ["RANK"] == "1":
    read_shard()
dist.all_reduce(torch.ones(1000))
"""
# The same without torch.
HANGS_IN_PYTHON = """
import os, time
def read_shard():
    time.sleep(1000)
def all_reduce():
    time.sleep(1000)
print("ready", flush=True)
read_shard() if os.environ["RANK"] == "2" else all_reduce()
"""


def test_a_job_that_stalls_says_who_waits_in_what_and_who_does_not_come(project: Project) -> None:
    (project.path / "train.py").write_text(HANGS_IN_TORCH)
    launched = project.launch("--stall-timeout", "10", "--script", "train.py")
    assert launched.status == 3, launched.output
    why = launched.result["why"]
    assert (why["kind"], why["culprits"], why["waiting"]) == ("absent", [1], [0]), launched.output
    assert why["where"] == ["train.py:5"]
    assert "why: rank 0 waits in all_reduce #2 of group 0 (3.9 KiB, train.py:10)" in launched.output
    assert "why: rank 1 on localhost has not come: it is in read_shard (train.py:5)" in launched.output


def test_without_torch_a_job_whose_stall_was_noted_is_explained_by_its_stacks(project: Project) -> None:
    (project.path / "train.py").write_text(HANGS_IN_PYTHON)
    project.env["MUSTER_STALL_NOTE"] = "1"
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    with project.start("--no-record", "--script", "train.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 3)))
        assert found
        job = found[1]

        def explained() -> dict[str, Any]:
            """The answer, once every rank has come to where it stays."""
            done = project.muster("why", job[-4:], "--json")
            said: dict[str, Any] = json.loads(done.stdout) if done.returncode == 1 else {}
            return said if said.get("culprits") == [2] else {}

        said = wait_until(explained, "rank 2 to be named, with exit status 1")
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=PATIENCE)
    assert (said["job"], said["kind"], said["hang"]) == (job, "stacks", True)
    assert said["cause"].startswith(
        "only stacks and /proc are available (the job was launched with --no-record)"
    )


UNEQUAL = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if os.environ["RANK"] == "2":
    dist.all_reduce(torch.ones(1000))
else:
    dist.all_reduce(torch.ones(2000))
"""
# Rank 2 goes on to the next forward while the others are in the backward. Gloo aborts one of the others.
FSDP2 = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (3,))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for step in range(5):
    loss = model(torch.ones(2, 8)).sum()
    if os.environ["RANK"] != "2" or step != 2:
        loss.backward()
"""


def test_a_crash_after_unequal_sizes_names_the_ranks_that_differ_and_both_lines(project: Project) -> None:
    launched = crashed(project, UNEQUAL)
    assert "all_reduce #2 of group 0 (2000 x float32, train.py:8)" in launched.output
    assert "all_reduce #2 of group 0 (1000 x float32, train.py:6)" in launched.output
    assert "muster_recorder.py" not in launched.output


@pytest.mark.soak
def test_a_skipped_backward_of_fsdp_is_blamed_on_the_rank_that_skipped_it(project: Project) -> None:
    crashed(project, FSDP2)


def crashed(project: Project, program: str) -> Launched:
    """The launch of a program of three ranks that fails because rank 2 calls another collective.

    Which rank fails first is a matter of luck.
    """
    (project.path / "train.py").write_text(program)
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    launched = project.launch("--script", "train.py")
    assert launched.status != 0
    why, first = launched.result["why"] or {}, launched.result["first_failure"]["rank"]
    assert (why.get("kind"), why.get("culprits")) == ("different", [2]), launched.output
    told_apart = f"why: rank {first} failed first, but rank 2 caused it"
    assert (told_apart in launched.output) == (first != 2), launched.output
    return launched


PROGRAMS = sorted({*HEALTHY.glob("*.py")} - {HEALTHY / "start.py"})
MATRIX = [(hang, backend) for backend in ("gloo", "mpi") for hang in in_setting(backend)]


@pytest.mark.soak
@pytest.mark.parametrize(("hang", "backend"), MATRIX, ids=[f"{hang.program}-{name}" for hang, name in MATRIX])
def test_a_seeded_bug_is_explained_while_it_hangs(project: Project, hang: Hang, backend: str) -> None:
    _, verdict = seen(project, hang.path, backend, seconds=PATIENCE)
    assert not judge(hang, verdict), str(verdict)


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.stem))
def test_a_healthy_program_is_never_called_a_hang(project: Project, program: Path) -> None:
    """At any of six paces; the program that only computes has one. One of them runs under torchrun."""
    looks = 6 if program.stem == "computes_alone" else 36
    launcher = "torchrun" if program.stem == "pipeline" else "mpirun"
    ranks, verdict = seen(project, program, "gloo", seconds=PATIENCE, looks=looks, launcher=launcher)
    assert len(ranks) == 3
    assert not verdict.hang, str(verdict)


# -- real jobs that make no progress for a while: launch, status and top show it, and accuse no other job --


# Twelve steps; then rank 1 keeps rank 0 waiting until a file is there, and a last step follows.
PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def wait_for_data():
    while not os.path.exists(f"{sys.argv[1]}/go"):
        time.sleep(0.5)
for step in range(13):
    if step == 12 and rank == 1:
        wait_for_data()
    dist.all_reduce(torch.ones(1000))
    if rank == 0:
        print(f"step {step}", flush=True)
"""
CAUSE = "rank 1 on localhost has not come to all_reduce #13 of group 0 (3.9 KiB, train.py:12): it is in w"


def make(project: Project) -> tuple[str, ...]:
    """The words that launch the program; a stall is noted from 3 s on."""
    (project.path / "train.py").write_text(PROGRAM)
    project.env["MUSTER_STALL_NOTE"] = "3"
    return ("--script", "train.py", f"--args='{project.path}'")


@pytest.mark.parametrize("detached", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_launch_status_and_top_name_a_stall_and_its_end(project: Project, *, detached: bool) -> None:
    words = make(project)
    launched = None if detached else project.start(*words)
    if launched:
        assert f"s: {CAUSE}" in read_until(launched, "note: no step for", 1)[-1]
    where = (project.detach(*words), "--hosts", "hosts.txt") if detached else ()
    hosts = where[1:]

    def stall() -> Any:
        states = _json(project, "status", *hosts)
        return states and states[-1]["state"] == "running" and states[-1]["stall"]

    assert CAUSE in wait_until(stall, "status to show the stall")["why"]
    assert f"s: {CAUSE}" in project.muster("status", *hosts).stdout
    assert CAUSE in _json(project, "top", *where)["note"]
    assert "! no step for" in project.muster("top", "--once", *where).stdout
    (project.path / "go").write_text("")
    if launched:
        launched.communicate(timeout=PATIENCE)
    printed = project.muster("logs", *where, "--follow").stdout
    assert "note: no step for" in printed
    assert "again after" in printed
    assert _json(project, "status", *hosts)[-1]["stall"] is None


@pytest.mark.soak
def test_a_verdict_has_the_stall_in_which_the_job_was_interrupted(project: Project) -> None:
    with project.start(*make(project)) as driver:
        read_until(driver, "note: no step for", 1)
        driver.send_signal(2)
        verdict, _ = driver.communicate(timeout=PATIENCE)
    assert CAUSE in verdict
    events = next((project.path / "runs").glob("*/events.jsonl")).read_text().splitlines()
    stopped = [event for event in map(json.loads, events) if event["type"] == "steps.stopped"]
    assert [CAUSE in event["text"] and event["since"] < event["at"] for event in stopped] == [True]


def _json(project: Project, *words: str) -> Any:
    return json.loads(project.muster(*words, "--json").stdout)
