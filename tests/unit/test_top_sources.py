"""Where the records of `muster top` come from: a run's folder in any state."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts.host_sample import SAMPLES
from muster.deploy.core.job.find import LocalRuns, jobs_at
from muster.deploy.core.wire.job_folders import identity
from muster.deploy.features.samples.driver import SampleFile
from muster.deploy.features.top.notes import Judge, Note
from muster.deploy.features.top.sources import GrowingFile, JobSource
from muster.deploy.features.top.top_history import PrintedText, TopHistory
from tests.unit.records import host_sample
from tests.unit.records import job as job_state

JOB = "20261122-101500-beef"
LATE = '[{"rank": 1, "host": "node0", "late": 0.052, "cause": ""}]'


class Run:
    """The folder of a run, as a driver writes it."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.folder = runs, runs / JOB
        (self.folder / "logs").mkdir(parents=True)
        record = {
            **{"job": JOB, "launcher": "mpirun", "hosts": ["node0", "node1"], "ranks": 4, "attempt": 0},
            **{"started": 1.0, "detached": False, "driver": identity(), "driver_folder": str(self.folder)},
        }
        (self.folder / "job.json").write_text(json.dumps(record))
        (self.folder / "lock.driver").touch()
        self.samples = SampleFile(str(self.folder / SAMPLES), 2)

    def say(self, rank: int, text: str) -> None:
        name = f"rank-{rank:04d}@node{rank // 2}.out"
        for path, words in ((name, text), ("order", f"{len(text)} {name}\n")):
            with (self.folder / "logs" / path).open("a") as file:
                file.write(words)

    def source(self) -> JobSource:
        (known,) = jobs_at([LocalRuns(self.runs)])
        return JobSource(known)


def test_a_sample_or_a_line_of_a_rank_is_of_the_host_that_the_plan_gives_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    record = json.loads((run.folder / "job.json").read_text())
    (run.folder / "job.json").write_text(json.dumps({**record, "placed": [1, 3]}))
    run.say(1, "step 1\n")
    with pytest.raises(MusterError, match="a record of rank 1 on node0, where the plan does not have it"):
        assert [*run.source().begin()]
    (run.folder / "job.json").write_text(json.dumps({**record, "placed": [2, 2]}))
    assert [one.rank for one in run.source().begin() if isinstance(one, PrintedText)] == [1]
    run.samples.add(replace(host_sample(0, 0), host="node1"))
    with pytest.raises(MusterError, match="a record of rank 0 on node1, where the plan does not have it"):
        assert [*run.source().begin()]


def test_a_job_gives_what_was_before_and_then_what_is_new(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.samples.add(host_sample(0, 0))
    run.say(2, "step 1\nstep 2\n")
    source = run.source()
    state, *before = source.begin()
    assert getattr(state, "job", "") == JOB
    assert before == [host_sample(0, 0), PrintedText(2, "node1", "step 1\nstep 2\n", old=True)]
    assert [*source.look()][1:] == []
    run.samples.add(host_sample(1, 1))
    run.say(0, "step 3\n")
    assert [*source.look()][1:] == [host_sample(1, 1), PrintedText(0, "node0", "step 3\n")]


def test_a_run_of_an_older_version_has_no_samples_and_is_shown_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.folder / SAMPLES).unlink()
    run.say(0, "hello\n")
    source = run.source()
    assert [*source.begin()][1:] == [PrintedText(0, "node0", "hello\n", old=True)]
    assert len([*source.look()]) == 1


def test_ranks_that_print_more_than_can_be_shown_are_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path)
    source = run.source()
    assert [*source.begin()]
    for _ in range(40):
        run.say(1, "x" * (1 << 18) + "\n")
    texts = [record for record in source.look() if isinstance(record, PrintedText)]
    assert 0 < len(texts) < 40
    assert [record for record in source.look() if isinstance(record, PrintedText)] == []


def test_a_file_may_grow_byte_by_byte_and_a_line_without_an_end_takes_no_memory() -> None:
    content = bytearray(b"cut\nsecond\nthi")
    file = GrowingFile(lambda name, start, most: bytes(content[start : start + min(most, 1)]), "a", 8)
    file.skip({"a": len(content)}, 12)
    assert [*file.lines()] == [b"t", b"second"]
    content += b"rd\n" + b"x" * 100
    assert [*file.lines()] == [b"third"]
    content += b"\nlast\n"
    assert [*file.lines()] == [b"x" * 8, b"last"]


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ('{"since": 40.0, "why": "rank 1 has not come"}', "no step for 1 min 0 s: rank 1 has not come"),
        ('{"since": "40"}', ""),
        ("[", ""),
        ("", ""),
    ],
)
def test_the_stall_and_the_late_ranks_that_the_driver_records_are_shown(recorded: str, shown: str) -> None:
    history = TopHistory()
    history.take(job_state(1, 2, recorded={"stall": recorded, "late": LATE}), 1.0)
    history.take(replace(host_sample(0, 10), at=100.0), 1.0)
    assert history.stall(1.0) == shown
    assert Judge(history, 1.0).rank(history.ranks[1]) == Note("others wait 52 ms a step", bad=False)
    assert Judge(history, 1.0).rank(history.ranks[0]) is None


def test_the_log_ends_with_the_errors_of_a_rank_that_failed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1):
        run.say(rank, "step 1\n")
    (run.folder / "logs" / "rank-0001@node0.err").write_text("Traceback\nRuntimeError: boom\n")
    history = TopHistory()
    for record in run.source().begin():
        history.take(record, 1.0)
    assert history.log == {"step 1": {0, 1}, "Traceback": {1}, "RuntimeError: boom": {1}}
    assert history.reporter is history.ranks[0] and history.ranks[1].lines[-1] == "RuntimeError: boom"
