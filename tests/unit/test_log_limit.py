"""What is kept of a log that is longer than --max-log."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.core.job.events import LauncherOutput, Output
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.wire.rank_logs import RankLog, attempt_in
from tests.unit.plans import make_plan

PLAN = make_plan("node1 slots=2\nnode2")


def folder_of(tmp_path: Path, max_log: int) -> RunFolder:
    folder = RunFolder(tmp_path, "job", max_log=max_log)
    folder.begin(PLAN)
    return folder


def end(folder: RunFolder) -> LaunchResult:
    return folder.ended(LaunchResult(plan=PLAN, started=0.0, ended=1.0, failure=None, ends={}))


def test_a_log_that_grows_much_costs_no_other_log_a_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 4000)
    for number in range(10_000):
        folder.on_event(Output(0, "node1", "out", f"step {number}\n"))
    folder.on_event(Output(0, "node1", "err", "why rank 0 failed\n"))
    folder.on_event(Output(1, "node1", "err", "why rank 1 failed\n"))
    result = end(folder)
    noisy = folder.log_of(0, "node1", "out").read_text()
    first, cut, last = noisy.partition("\n[cut here, node1 has all of it: --max-log 4000]\n")
    assert cut
    assert first.startswith("step 0\nstep 1\n")
    assert last.endswith("step 9998\nstep 9999\n")
    missing = last.partition(" ")[0].lstrip("[")
    kept = len(first) + len(last.partition("\n")[2])
    assert int(missing) + kept == sum(len(f"step {number}\n") for number in range(10_000))
    assert folder.log_of(0, "node1", "err").read_text() == "why rank 0 failed\n"
    assert folder.log_of(1, "node1", "err").read_text() == "why rank 1 failed\n"
    assert result.notes == (
        "here the logs of rank 0 have only their beginning and their end: "
        "--max-log 4000 bytes for each log; the hosts have all",
    )


def test_the_last_lines_are_kept_however_small_the_limit_is(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 1)
    folder.on_event(Output(1, "node1", "err", "ValueError: boom\n"))
    folder.on_event(LauncherOutput("node2", "mpirun: rank 1 failed\n"))
    assert "rank 1 and the launcher on node2" in end(folder).notes[0]
    assert folder.log_of(1, "node1", "err").read_text().endswith("]\nValueError: boom\n")
    assert (folder.logs / "launcher@node2.log").read_text().endswith("]\nmpirun: rank 1 failed\n")


def test_logs_within_the_limit_and_without_one_are_as_they_were(tmp_path: Path) -> None:
    for max_log in (20_000, 0):
        folder = folder_of(tmp_path / str(max_log), max_log)
        folder.on_event(Output(1, "node1", "err", "x" * 3000))
        assert end(folder).notes == ()
        assert folder.log_of(1, "node1", "err").read_text() == "x" * 3000


def test_the_order_of_all_logs_counts_what_is_appended_at_the_end(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 4000)
    for number in range(1000):
        folder.on_event(Output(0, "node1", "out", f"step {number}\n"))
    end(folder)
    entries = [line.split(" ") for line in (folder.logs / "order").read_text().splitlines()]
    assert sum(int(size) for size, _ in entries) == folder.log_of(0, "node1", "out").stat().st_size


# -- the names of logs --


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (RankLog(7, "node2", 0, "err"), "rank-0007@node2.err"),
        (RankLog(12345, "a.b.restart-x", 3, "out"), "rank-12345@a.b.restart-x.restart-3.out"),
    ],
)
def test_a_name_is_read_as_it_was_written(log: RankLog, name: str) -> None:
    assert log.name == name
    assert RankLog.of_name(name) == log
    assert attempt_in(name) == log.attempt


@pytest.mark.parametrize("name", ["launcher@node2.log", "rank-7@node2.out", "rank-0007@node2.json", "order"])
def test_another_file_is_not_the_log_of_a_rank(name: str) -> None:
    assert RankLog.of_name(name) is None
