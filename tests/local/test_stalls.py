"""Real jobs that make no progress for a while: launch, status and top show it, and accuse no other job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launching import Project
from tests.waiting import PATIENCE, read_until, wait_until

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
