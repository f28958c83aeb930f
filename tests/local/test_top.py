"""Samples of a real job, and what `muster top` makes of them: live, restarted, detached, and afterwards."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.launching import Project
from tests.samples import read_samples
from tests.waiting import wait_until

# Each attempt writes steps until its file is there; the first attempt fails then.
PROGRAM = """
import json, os, sys, time
rank, attempt = int(os.environ["RANK"]), os.environ["MUSTER_RESTART"]
step = 0
while not os.path.exists(f"{sys.argv[1]}/go-{attempt}"):
    step += 1
    print(f"attempt {attempt} step {step}", flush=True)
    if rank == 0:
        with open(os.environ["MUSTER_OUT"] + "/steps.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": float("nan"), "step_seconds": 0.1}) + "\\n")
    time.sleep(0.1)
sys.exit(7 if attempt == "0" and rank == 1 else 0)
"""


def figures(project: Project, *words: str) -> dict[str, Any]:
    """What `muster top --json` prints; {} as long as there is no such job."""
    asked = project.muster("top", "--json", *words)
    loaded: dict[str, Any] = json.loads(asked.stdout) if asked.returncode == 0 else {}
    return loaded


def seen(project: Project, attempt: int, *words: str) -> dict[str, Any]:
    """The figures of an attempt, as soon as both ranks have processor time, and their training a step."""
    known = figures(project, *words)
    ranks = known.get("ranks", [])
    sampled = [rank for rank in ranks if rank["sample"] and rank["sample"]["cpu"] is not None]
    there = len(sampled) == 2 and all(
        f"attempt {attempt} step" in (rank["last_line"] or "") for rank in sampled
    )
    return known if there and known["attempt"] == attempt and known["training"] else {}


@pytest.mark.parametrize("detach", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_job_is_seen_through_a_restart(project: Project, tmp_path: Path, *, detach: bool) -> None:
    (project.path / "steps.py").write_text(PROGRAM)
    words = ("--script", "steps.py", f"--args='{tmp_path}'", "--max-restarts", "1")
    if detach:
        launched, where = None, [project.detach(*words), "--hosts", "hosts.txt"]
    else:
        launched, where = project.start(*words), []
    try:
        for attempt in (0, 1):
            known = wait_until(partial(seen, project, attempt, *where), "both ranks", pause=1.0)
            assert known["state"] == "running" and known["training"]["loss"] is None
            (tmp_path / f"go-{attempt}").touch()
    finally:
        for attempt in (0, 1):
            (tmp_path / f"go-{attempt}").touch()
        if launched:
            output = launched.communicate()[0]
            assert launched.returncode == 0, output
    assert not detach or project.muster("attach", *where).returncode == 0
    (folder,) = (project.path / "runs").iterdir()
    samples = [*read_samples(os.fspath(folder / "samples.jsonl"))]
    assert {sample.attempt for sample in samples} == {0, 1}
    assert {rank.rank for sample in samples for rank in sample.ranks} == {0, 1}
    assert samples == sorted(samples, key=lambda sample: sample.at)
    over = figures(project, folder.name)
    assert over["state"] == "done" and over["hosts"][0]["note"] in {None, "overloaded"}
    assert "attempt 1" in project.muster("top", folder.name, "--once").stdout
    no_terminal = project.muster("top", folder.name)
    assert (no_terminal.returncode, "top needs a terminal" in no_terminal.stderr) == (2, True)


def test_what_cannot_be_watched_is_said(project: Project) -> None:
    none = project.muster("top")
    assert (none.returncode, " runs here" in none.stderr) == (2, True)
