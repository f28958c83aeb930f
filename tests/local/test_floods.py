"""Ranks that print short lines as fast as they can: verdict and Ctrl-C come in time, and no line is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launching import Project
from tests.load import hold

# Rank 1 fails in the midst of it, or nobody does.
FLOOD = """
import os, sys, time
block = b"x\\n" * 32768
until = time.monotonic() + float(sys.argv[1])
while os.environ["RANK"] != "1" or time.monotonic() < until:
    os.write(1, block)
sys.exit(3)
"""


@pytest.fixture
def flooding(project: Project) -> Project:
    (project.path / "flood.py").write_text(FLOOD)
    return project


def logs_of(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "logs").glob("rank-*.out")}


@pytest.mark.soak
def test_a_flood_of_lines_delays_no_verdict_and_costs_no_line_of_the_log(flooding: Project) -> None:
    done = flooding.launch("--max-log=0", "--launcher=mpirun", "--script=flood.py", "--args=4")
    ended = time.time()
    assert (done.status, done.result["first_failure"]["rank"]) == (3, 1)
    hold("from the failure to the verdict", ended - done.result["first_failure"]["time"], 2.0)
    there = Path(flooding.env["HOME"], ".muster", "jobs", done.job)
    name = "rank-0001@localhost.out"
    here = logs_of(done.folder)[name]
    assert here == logs_of(there)[name]
    assert set(here.splitlines()) == {b"x"}
    assert "lines are left out here; the logs have them" in done.output


@pytest.mark.soak
def test_a_flood_of_lines_does_not_delay_a_ctrl_c(flooding: Project) -> None:
    with flooding.start("--max-log=0", "--launcher=mpirun", "--script=flood.py", "--args=1e9") as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout):
            if number == 100_000:
                process.send_signal(signal.SIGINT)
                asked = time.monotonic()
        status = process.wait()
    hold("from Ctrl-C to the end", time.monotonic() - asked, 5.0)
    assert status == 130
