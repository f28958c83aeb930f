"""The example of docs/how-to/look-at-a-run.md that tells MLflow about a run, with an MLflow that keeps it."""

from __future__ import annotations

import re
import subprocess
import sys
from json import loads
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runs import JOB, write_run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look-at-a-run.md"
MLFLOW = """
import contextlib, json

def note(kind, *values):
    with open("told.jsonl", "a") as file:
        file.write(json.dumps([kind, *values]) + "\\n")

@contextlib.contextmanager
def start_run(run_name):
    note("run", run_name)
    yield

def log_params(params): note("params", params)
def log_metric(name, value): note("metric", name, value)
def set_tag(name, value): note("tag", name, value)
def log_metrics(metrics, step): note("metrics", metrics, step)
def log_artifact(path): note("artifact", str(path))
"""


def told(folder: Path, place: Path) -> list[list[Any]]:
    """What MLflow gets of a run."""
    (example,) = re.findall(r"```python\n(import json, sys\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (place / "mlflow.py").write_text(MLFLOW)
    (place / "tell_mlflow.py").write_text(example)
    command = [sys.executable, "tell_mlflow.py", str(folder)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [loads(line) for line in (place / "told.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "runs", fails=True)
    ended = '{"type": "job.ended", "exit_status": 1, "text": "rank 3 on node2: exit status 1"}\n'
    with (folder / "events.jsonl").open("a") as file:
        file.write(ended)
    return folder


def test_the_example_tells_params_steps_and_how_it_ended(run: Path, tmp_path: Path) -> None:
    lines = told(run, tmp_path)
    assert lines[:2] == [
        ["run", JOB],
        ["params", {"program": "train.py", "args": "--lr 0.1 --token ***", "ranks": 4}],
    ]
    assert ["metric", "exit_status", 1] in lines
    assert ["tag", "verdict", "rank 3 on node2: exit status 1"] in lines
    steps = [line for line in lines if line[0] == "metrics"]
    assert len(steps) == 20 and steps[-1][2] == 20 and steps[-1][1]["lr"] == 0.1
    assert lines[-1] == ["artifact", str(run / "report.html")]


def test_the_example_does_without_steps(run: Path, tmp_path: Path) -> None:
    (run / "steps.jsonl").unlink()
    assert not [line for line in told(run, tmp_path) if line[0] == "metrics"]
