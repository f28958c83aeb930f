"""`from muster import launch, run`: real jobs of programs in Python, and of the notebook of the documents."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.launching import ROOT, Project, processes_of, wait_until_clean
from tests.waiting import PATIENCE, read_until

NOTEBOOK = ROOT / "docs" / "how-to" / "python.ipynb"
PATIENT = "hosts='hosts.txt', np=2, start_timeout=300"


def python(project: Project, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python in the project to its end."""
    (project.path / "own.py").write_text(text)
    return subprocess.run(
        [sys.executable, "own.py"],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


SAVE = """
import os, sys
if os.environ["RANK"] == "1":
    open("last.pt", "w").write("weights")
    sys.exit(3)
"""


def test_a_job_is_an_object(project: Project) -> None:
    (project.path / "save.py").write_text(SAVE)
    done = python(
        project,
        f"""
from muster import launch
job = launch("program.py", "a b", {PATIENT})
assert job.state in ("running", "done"), job
result = job.wait()
assert result == job.result and job.done and job.state == "done"
assert [(end.rank, end.host, end.code) for end in result.ranks] == [(0, "localhost", 0), (1, "localhost", 0)]
result.raise_on_error()
assert job.logs(1).count('"argv": ["a b"]') == 1
assert all(f"[{{rank}} localhost] {{{{" in job.logs() for rank in (0, 1))
assert "DONE    2 ranks on 1 host" in result.verdict
job = launch("save.py", show=False, {PATIENT})
failed = job.wait()
print(failed.exit_status, failed.first_failure.rank, failed.written[0].beside.largest)
print((job.get("last.pt") / "last.pt").read_text())
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0 localhost] {" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["3 1 last.pt", "weights"]
    assert "FAILED" not in done.stdout, "it was not to be shown"


def test_a_function_returns_the_value_of_each_rank_or_raises(project: Project) -> None:
    (project.path / "library.py").write_text("def twice(number): return 2 * number\n")
    done = python(
        project,
        f"""
import os
import library
from muster import RankError, run
def function(number):
    rank = int(os.environ["RANK"])
    if number < 0 and rank == 1:
        raise ValueError(f"negative: {{number}}")
    return rank, library.twice(number)
assert run(function, 4, {PATIENT}) == [(0, 8), (1, 8)]
assert run(library.twice, 4, show=False, launcher="torchrun", {PATIENT}) == [8, 8]
try:
    run(function, -4, {PATIENT})
except RankError as error:
    assert (error.rank, error.host, error.type_name) == (1, "localhost", "ValueError"), error
    assert 'own.py", line' in error.traceback and error.result.state == "failed"
    print(error.text)
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "negative: -4"


def test_a_job_that_cannot_start_is_an_error_of_launch(project: Project) -> None:
    done = python(
        project,
        """
from muster import MusterError, UsageError, launch
for flags in ({"hosts": "missing.txt"}, {"script": "missing.py"}, {"np": 3}):
    try:
        launch(**{"script": "program.py", "hosts": "hosts.txt", **flags})
    except UsageError as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = done.stdout.splitlines()
    assert "missing.txt" in first
    assert second.startswith("script missing.py: no such file")
    assert "--np 3" in third
    assert "Traceback" not in done.stderr


def test_a_job_is_stopped_from_python_and_at_the_end_of_its_block(project: Project) -> None:
    done = python(
        project,
        f"""
from muster import launch
job = launch("program.py", "wait", {PATIENT})
print(job.stop().state, job.result.first_failure.reason.partition(",")[0])
with launch("program.py", "wait", {PATIENT}) as job:
    pass
print(job.result.state)
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("stopped")] == [
        "stopped muster stop",
        "stopped",
    ]


def test_a_job_whose_driver_is_killed_is_lost(project: Project) -> None:
    done = python(
        project,
        f"""
import json, os
from muster import LaunchError, launch
job = launch("program.py", "wait", {PATIENT})
os.kill(json.loads((job.folder / "job.json").read_text())["driver"]["pid"], 9)
try:
    job.wait()
except LaunchError as error:
    print(job.id, job.state, error)
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job, state, why = done.stdout.splitlines()[-1].split(maxsplit=2)
    assert (state, why) == ("lost", "the driver ended early: SIGKILL (9)")
    wait_until_clean(job)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_job_ends_with_ctrl_c_and_with_its_program(project: Project, number: signal.Signals) -> None:
    text = f"""
import signal
from muster import launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner may ignore it
launch("program.py", "wait", {PATIENT}).wait()
"""
    (project.path / "own.py").write_text(text)
    with subprocess.Popen(
        [sys.executable, "own.py"],
        cwd=project.path,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        output = read_until(process, "waiting", 1)
        assert process.stdout
        process.send_signal(number)
        rest = process.stdout.read()
        process.wait(PATIENCE)
    (run,) = (project.path / "runs").iterdir()
    wait_until_clean(run.name)
    assert not processes_of(run.name)
    if number == signal.SIGINT:
        assert json.loads((run / "result.json").read_text())["state"] == "stopped"
        assert "KeyboardInterrupt" in rest, output


def test_the_notebook_runs_in_an_event_loop_and_in_threads(project: Project) -> None:
    """As the kernel of Jupyter does: each cell in `__main__`, while a loop runs."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    (project.path / "cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in cells]))
    (project.path / "train.py").write_text("print('trained')\n")
    done = python(
        project,
        """
import ast, asyncio, json
async def notebook():
    for text in json.load(open("cells.json")):
        code = compile(text, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, globals())
        if value is not None:
            await value
asyncio.run(notebook())
""",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0, 10]" in done.stdout.splitlines()
    assert "rank 1 on localhost: ValueError: too large" in done.stdout
    assert done.stdout.count("trained") >= 2
