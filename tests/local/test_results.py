"""What a program writes beside its code is named, comes here, and stays for the next launch if it is kept."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.launching import Project

PROGRAM = """
import os, sys
if os.environ["RANK"] == "0":
    print("resumed" if os.path.exists("checkpoints/last.pt") else "from scratch")
    os.makedirs("checkpoints", exist_ok=True)
    with open("checkpoints/last.pt", "w") as file:
        file.write("w" * 5000)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("launcher", "status"), [("mpirun", 3), pytest.param("torchrun", 0, marks=pytest.mark.soak)]
)
def test_results_beside_the_code_are_named_and_fetched(project: Project, launcher: str, status: int) -> None:
    (project.path / "save.py").write_text(PROGRAM)
    done = project.launch("--launcher", launcher, "save.py", str(status))
    assert done.status == status, done.output
    get = f"muster get {done.job} fetches it; the next launch starts without it"
    assert f"written beside the code: checkpoints/last.pt, 4.9 KiB on localhost; {get}" in done.output
    fetched = project.muster("get", done.job)
    assert fetched.stdout == f"runs/{done.job}/files/checkpoints/last.pt\n", fetched.stderr
    assert (done.folder / "files" / "checkpoints" / "last.pt").stat().st_size == 5000
    cleaned = project.muster("clean", "--older-than", "0").stdout
    assert f"{done.job}: checkpoints/last.pt, 4.9 KiB\n" in cleaned
    assert "1 job removed, 0 kept" in project.muster("clean", "--older-than", "0", "--results").stdout


def test_a_kept_folder_lets_the_next_launch_resume(project: Project) -> None:
    (project.path / "save.py").write_text(PROGRAM)
    (project.path / "muster.toml").write_text('keep = ["checkpoints"]\n')
    for said in ("from scratch", "resumed"):
        done = project.launch("save.py", "0")
        assert f"[0 localhost] {said}" in done.output
        assert "kept: checkpoints in ~/.muster/kept/" in done.output
        assert "beside the code" not in done.output
        project.muster("clean", "--older-than", "0", "--results")


# -- a real run that fails leaves its page, its events and its record --


def test_a_failed_run_leaves_its_page_and_events(project: Project) -> None:
    words = ["--script", "program.py", "--args=raise", "--env", "HF_TOKEN=s3cret"]
    done = project.launch(*words)
    assert done.status == 1
    page = (done.folder / "report.html").read_text()
    assert f"page: {(done.folder / 'report.html').relative_to(project.path)}" in done.output
    assert "rank 1 on localhost: exit status 1" in page
    assert "ValueError: boom" in page
    assert "s3cret" not in page
    events = [json.loads(line) for line in (done.folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("attempt.started", "job.ended")
    assert "rank.failed" in kinds
    assert (events[-1]["rank"], events[-1]["exit_status"]) == (1, 1)
    launch = json.loads((done.folder / "launch.json").read_text())
    assert launch["env"] == {"HF_TOKEN": "***"}
    assert "program.py" in launch["code"]["files"]


# -- the output that `muster run` reports of a command --


# The reading thread starts only after the command has ended, as on a busy machine.
READS_LATE = """
import queue, threading, time, types
from muster.deploy.features.adhoc.on_host import run_command as commands

class Late(threading.Thread):
    def run(self):
        time.sleep(0.5)
        super().run()

commands.threading = types.SimpleNamespace(Thread=Late, Event=threading.Event)
reports = queue.Queue()
commands.CommandRunner(lambda frame, output: reports.put(output)).do_run(
    {"argv": ["echo", "hello"], "limit": 30.0}, b""
)
print(reports.get(timeout=30))
"""


def test_the_output_of_a_command_that_ends_before_it_is_read_is_kept() -> None:
    # A separate process, because the agent reaps every child of its process.
    argv = [sys.executable, "-c", READS_LATE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "b'hello\\n'\n", done.stderr


# -- a real run tells a command of its end --


def test_a_command_gets_the_failure_of_a_real_run(project: Project) -> None:
    told = project.path / "told"
    done = project.launch("--script", "program.py", "--args=raise", "--notify", f"tee '{told}'")
    assert done.status == 1
    assert json.loads(told.read_text())["failure"]["rank"] == 1
