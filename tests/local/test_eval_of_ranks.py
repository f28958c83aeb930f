"""`muster eval` with a real job."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.launching import Project
from tests.waiting import PATIENCE, read_until

PROGRAM = """
import os, time
step, rank = 7, int(os.environ["RANK"])
def train():
    print("ready", flush=True)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
train()
print("done", step, flush=True)
"""


def test_ranks_of_a_recorded_job_answer_and_go_on(project: Project, tmp_path: Path) -> None:
    (project.path / "train.py").write_text(PROGRAM)
    go = tmp_path / "go"
    with project.start("--env", f"GO={go}", "--script", "train.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 2)))
        assert found
        job = found[1]
        same = project.muster("eval", job[-4:], "step")
        each = project.muster("eval", job, "rank / (1 - rank)", "--json")
        absent = project.muster("eval", job, "step", "--rank", "2")
        go.touch()
        output, _ = driver.communicate(timeout=PATIENCE)
    assert (same.returncode, same.stdout) == (0, "ranks 0-1: 7\n"), same
    answers = json.loads(each.stdout)
    assert (each.returncode, answers["job"], answers["silent"]) == (1, job, {})
    assert answers["ranks"]["0"]["value"] == "0.0"
    assert answers["ranks"]["1"]["error"] == "ZeroDivisionError: division by zero"
    assert answers["ranks"]["1"]["at"].startswith("train (train.py:")
    assert (absent.returncode, absent.stderr) == (2, "--rank 2: the job has the ranks 0 to 1\n")
    assert driver.returncode == 0
    assert output.count("localhost] done 7") == 2
