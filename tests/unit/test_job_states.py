"""Jobs read from their folders: how they go, what they printed, and what a host may not make of it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from muster.deploy.cli import job_commands, job_table
from muster.deploy.cli.command import Exit, execute
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.job_options import Attach, Logs
from muster.deploy.cli.run_files import FILES, METRICS
from muster.deploy.cli.shared import JobOptions
from muster.deploy.core import waits
from muster.deploy.core.connect.requests import Answer, Request
from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.core.hosts.host_sample import SAMPLES
from muster.deploy.core.job import find as jobs
from muster.deploy.core.job.events import JobEvent, LauncherOutput, Output
from muster.deploy.core.job.fetch import FeatureFiles, fetch, snapshot
from muster.deploy.core.job.find import LocalRuns, LocatedJob, LogLine
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.wire import job_folders as wire_runs
from muster.deploy.core.wire.frames import Frame
from muster.deploy.core.wire.job_folders import identity
from muster.deploy.core.wire.rank_logs import restart_suffix
from muster.deploy.core.wire.users import own_name
from muster.deploy.features.page.render import run_page
from muster.deploy.features.page.run_records import read
from muster.deploy.features.returned_values.driver import name_of
from muster.deploy.features.slurm.mark import any_mark
from muster.deploy.features.why.stragglers import PACE
from tests.unit.plans import make_plan

RECORD: dict[str, Any] = {
    "job": "20261121-120000-abcd",
    "launcher": "mpirun",
    "hosts": ["node1", "node2"],
    "ranks": 4,
    "placed": [2, 2],
    "attempt": 0,
    "started": 1000.0,
    "detached": False,
    "driver": {"host": "laptop", "boot": "", "pid": 7, "start": 8},
    "driver_folder": "/runs/20261121-120000-abcd",
}
FAILED = {
    "attempt": 0,
    "ended": 1060.0,
    "exit_status": 3,
    "first_failure": {"rank": 3, "host": "node2", "reason": "exit status 3"},
}


class OnHost(LocalRuns):
    """The records that a host has, at the end of a channel."""

    host = "node1"


def make_run(runs: Path, job: str = RECORD["job"], **changes: object) -> Path:
    run = runs / job
    (run / "logs").mkdir(parents=True)
    (run / "job.json").write_text(json.dumps({**RECORD, "job": job, **changes}))
    return run


def only(runs: Path, job: str = RECORD["job"]) -> LocatedJob:
    return jobs.only(jobs.jobs_at([LocalRuns(runs)]), job, "here")


def hold(run: Path) -> int:
    descriptor = os.open(run / "lock.driver", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize(
    "odd",
    [
        {"driver": {}},
        {"driver": None},
        {"driver": {"host": "laptop", "pid": "7", "boot": ""}},
        {"hosts": [1]},
        {"job": "an older id"},
        {"ranks": None},
        {"started": "yesterday"},
        {"started": -(10**400)},
        {"launcher": "x" * 300},
        {"ranks": -5},
        {"job": RECORD["job"], "ranks": 1},
    ],
    ids=lambda odd: str(odd)[:60],
)
def test_a_record_with_odd_parts_hides_no_other_job(tmp_path: Path, odd: dict[str, Any]) -> None:
    make_run(tmp_path)
    other = make_run(tmp_path, "20261120-120000-0000")
    (other / "job.json").write_text(json.dumps({**RECORD, "job": other.name, **odd}))
    (make_run(tmp_path, "20261120-120000-1111") / "result.json").write_text('{"exit_status": 1, "ended": 1}')
    (tmp_path / "20261120-120000-1111" / "logs").rmdir()
    (tmp_path / "20261120-120000-1111" / "logs").symlink_to("logs")  # a circle
    known = jobs.jobs_at([LocalRuns(tmp_path)])
    assert [one.state.ranks for one in known if one.state.job == RECORD["job"]] == [4]
    assert not [one for one in known if one.state.job == other.name]
    assert only(tmp_path).state.ranks == 4


def test_a_job_runs_as_long_as_its_driver_holds_the_lock(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    descriptor = hold(run)
    assert only(tmp_path).state.state == "running"
    os.close(descriptor)
    lost = only(tmp_path).state
    assert lost.state == "lost"
    assert lost.why == "its driver on laptop (process 7) ended without a result"


def test_where_its_driver_is_elsewhere_a_job_runs_as_long_as_a_agent_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "job")
    lock = os.open(run.parent / "lock.node1", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    assert only(run.parent).state.state == "running"
    os.close(lock)
    assert only(run.parent).state.state == "lost"


def test_the_words_of_a_driver_that_crashed_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "driver.log").write_text("Traceback ...\nMemoryError\n\n")
    assert only(tmp_path).state.why.endswith("ended without a result: MemoryError")


def test_a_result_says_how_it_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "result.json").write_text(json.dumps(FAILED))
    state = only(tmp_path).state
    assert (state.state, state.exit_status, state.why) == ("failed", 3, "rank 3 on node2: exit status 3")
    assert "\nwhy " not in job_table.details(state)
    causes = ["rank 0 waits in barrier #4", "rank 3 has not come"]
    (run / "result.json").write_text(json.dumps({**FAILED, "causes": causes}))
    said = job_table.details(only(tmp_path).state)
    assert "\nwhy      rank 0 waits in barrier #4; rank 3 has not come\n" in said
    (run / "result.json").write_text(json.dumps({**FAILED, "exit_status": 0, "first_failure": None}))
    assert only(tmp_path).state.state == "done"


@pytest.mark.parametrize(
    ("kind", "reason", "why"),
    [
        ("interrupted", "SIGINT (2)", "SIGINT (2)"),
        ("stopped", "muster stop, by ada on lab", "muster stop, by ada on lab"),
    ],
)
def test_a_job_that_somebody_ended_is_stopped(tmp_path: Path, kind: str, reason: str, why: str) -> None:
    failure = {"kind": kind, "rank": None, "host": None, "reason": reason, "time": 1059.0}
    result = {**FAILED, "exit_status": 130, "first_failure": failure}
    run = make_run(tmp_path)
    (run / "result.json").write_text(json.dumps(result))
    state = only(tmp_path).state
    assert (state.state, state.exit_status, state.why) == ("stopped", 130, why)
    assert job_table.outcome(state) == f"stopped by {why}"
    page = run_page(read(run))
    assert (page.state, page.tone, page.headline) == ("stopped", "plain", f"stopped by {why}")


def test_the_page_of_a_job_that_ends_names_the_ranks_that_still_save(tmp_path: Path) -> None:
    run = make_run(tmp_path, recorded={"saving": [0, 1]})
    descriptor = hold(run)
    assert run_page(read(run)).headline == "ranks 0-1 still handle SIGTERM"
    os.close(descriptor)


def test_the_result_of_an_earlier_attempt_is_not_the_jobs(tmp_path: Path) -> None:
    run = make_run(tmp_path, attempt=1)
    (run / "result.json").write_text(json.dumps(FAILED))
    assert only(tmp_path).state.exit_status is None


def test_a_job_is_named_by_its_id_or_its_end_and_a_wrong_one_lists_what_there_is(tmp_path: Path) -> None:
    for number, job in enumerate(
        ("20261121-110000-ffff", "20261121-120000-abcd", "20261121-130000-abcd", "20261121-140000-0001")
    ):
        make_run(tmp_path, job, started=1000.0 + number)
    assert only(tmp_path, "0001").state.job == "20261121-140000-0001"
    with pytest.raises(UsageError, match="several jobs end in abcd: 20261121-120000-abcd"):
        only(tmp_path, "abcd")
    newest = "20261121-140000-0001 (lost), 20261121-130000-abcd (lost), 20261121-120000-abcd (lost)"
    with pytest.raises(UsageError) as wrong:
        only(tmp_path, "x")
    assert str(wrong.value) == f"no job x here; the newest: {newest}; muster status lists all"
    with pytest.raises(UsageError, match="no job x here; there are no jobs"):
        only(tmp_path / "nowhere", "x")


def test_without_an_id_it_is_the_newest_job_or_the_newest_that_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job of ada is here; muster status"):
        jobs.newest(jobs.jobs_at([LocalRuns(tmp_path)]), "ada", "here", running=False)
    users = {"20261121-120000-abcd": "ada", "20261121-130000-0001": "ada", "20261121-140000-0002": "bob"}
    older, _, other = (make_run(tmp_path, job, user=user) for job, user in users.items())
    theirs = hold(other)
    with pytest.raises(UsageError, match="no job of ada runs here; muster status"):
        jobs.newest(jobs.jobs_at([LocalRuns(tmp_path)]), "ada", "here", running=True)
    driver = hold(older)
    known = jobs.jobs_at([LocalRuns(tmp_path)])
    assert jobs.newest(known, "ada", "here", running=True).state.job == "20261121-120000-abcd"
    assert jobs.newest(known, "ada", "here", running=False).state.job == "20261121-130000-0001"
    elsewhere = known[1]._replace(records=OnHost(tmp_path))
    assert jobs.newest([known[0], elsewhere], "ada", "here", running=False) is known[0]
    assert jobs.newest([elsewhere], "ada", "here", running=False) is elsewhere
    os.close(driver)
    os.close(theirs)


def test_a_driver_whose_clock_is_ahead_does_not_keep_its_job_the_newest(tmp_path: Path) -> None:
    now, day = time.time(), 86400.0
    driver = {**RECORD["driver"], **identity(), "pid": 7}
    ahead = make_run(tmp_path / "host", "20261122-120000-0001", started=now + day)
    os.utime(ahead / "job.json", (now - 60, now - 60))
    make_run(tmp_path / "host", "20261121-120500-0002", started=now - 30)
    known = jobs.jobs_at([LocalRuns(tmp_path / "host")])
    assert [entry.state.job for entry in known] == ["20261122-120000-0001", "20261121-120500-0002"]
    # This machine's own clock was ahead, and was set back: its files are of the future too.
    for job, started in (("20261122-120000-0001", now + day), ("20261121-120500-0002", now - 30)):
        run = make_run(tmp_path / "here", job, started=started, driver={**driver, "start": 0})
        os.utime(run / "job.json", (started, started))
    (gone,) = [make_run(tmp_path / "here", "20261122-110000-0003", started=now + day)]
    os.utime(gone / "job.json", (now + day, now + day))
    known = jobs.jobs_at([LocalRuns(tmp_path / "here")])
    assert [entry.state.job[-4:] for entry in known] == ["0003", "0001", "0002"]
    assert known[0].state.arrived == 0.0


def test_status_lists_jobs_that_run_first_and_then_the_last_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"20261121-1200{number:02d}-0000" for number in range(25)]
    for started, name in enumerate(names):
        make_run(tmp_path, name, started=started, user=own_name())
    theirs = hold(make_run(tmp_path, "20261120-120000-aaaa", user="bob"))

    def listed(*words: str) -> list[str]:
        assert run(["status", "--runs", str(tmp_path), "--json", *words]) == 0
        return [entry["job"] for entry in json.loads(capsys.readouterr().out)]

    over = [*reversed(names)]
    assert listed() == ["20261120-120000-aaaa", *over[:20]]
    assert listed("-n", "3", "--mine") == over[:3]
    assert run(["status", "--runs", str(tmp_path), "--mine"]) == 0
    assert capsys.readouterr().err == "5 older jobs: muster status -n 0 lists all\n"
    assert listed("-n", "0") == ["20261120-120000-aaaa", *over]
    assert listed("--running") == ["20261120-120000-aaaa"]
    assert listed("--running", "--mine") == []
    own = hold(tmp_path / names[7])
    assert listed("--running", "--mine") == [names[7]]
    os.close(own)
    os.close(theirs)


def test_a_stop_names_the_ranks_that_still_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path, hosts=["node1"], ranks=2, placed=[2])
    held, shown, saving = hold(folder), list[str](), [[0, 1], [1], []]

    def tick(seconds: float) -> None:
        shown.append(waits.line(time.monotonic()))
        if saving:
            record = json.loads((folder / "job.json").read_text())
            (folder / "job.json").write_text(json.dumps({**record, "recorded": {"saving": saving.pop(0)}}))
            shown.append(job_table.details(only(tmp_path).state))
        else:
            os.close(held)

    monkeypatch.setattr(time, "sleep", tick)
    monkeypatch.setattr(wire_runs, "end_driver", lambda *words, force: True)
    run(["stop", RECORD["job"], "--runs", str(tmp_path)])
    end = f"waiting for the end of {RECORD['job']} (a second stop kills it)"
    assert shown[::2] == [
        end,
        "waiting for ranks 0-1 to handle SIGTERM",
        "waiting for rank 1 to handle SIGTERM",
        end,
    ]
    assert "\nending   ranks 0-1 still handle SIGTERM\n" in shown[1]
    assert "\nending " not in shown[5]


def test_a_row_of_status_fits_the_terminal_and_names_the_user(tmp_path: Path) -> None:
    run = make_run(tmp_path, user="ada")
    (run / "logs" / "rank-0000@node1.out").write_text("a long line " * 20)
    (run / "result.json").write_text(json.dumps({**FAILED, "exit_status": 0, "first_failure": None}))
    state = only(tmp_path).state
    header, row = job_table.table([state], 80).splitlines()
    assert header.split()[:4] == ["job", "state", "user", "ranks"]
    assert row.split()[:3] == [state.job, "done", "ada"]
    assert (len(row), row[-1]) == (80, "…")
    assert len(job_table.table([state]).splitlines()[1]) > 200


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    (make_run(tmp_path, "broken") / "job.json").write_text("{")
    (make_run(tmp_path, "list") / "job.json").write_text("[]")
    (tmp_path / "file").touch()
    (make_run(tmp_path, ".on-its-way.new")).touch()
    assert jobs.jobs_at([LocalRuns(tmp_path)]) == []


def test_logs_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    logs = make_run(tmp_path) / "logs"
    (logs / "rank-0000@node1.out").write_text("a\nc\n")
    (logs / "rank-0012@n.o-2.restart-1.err").write_bytes(b"b\xff\n")
    (logs / "order").write_text(
        "2 rank-0000@node1.out\n3 rank-0012@n.o-2.restart-1.err\n2 rank-0000@node1.out\n2 rank-00"
    )
    known = only(tmp_path)
    printed = list(jobs.printed(known, rank=None, follow=False))
    assert [(line.rank, line.host, line.stream, line.text) for line in printed] == [
        (0, "node1", "out", "a\n"),
        (12, "n.o-2", "err", "b\udcff\n"),
        (0, "node1", "out", "c\n"),
    ]
    fresh = only(tmp_path)
    assert [line.text for line in jobs.printed(fresh, rank=12, follow=False)] == ["b\udcff\n"]
    assert not list(jobs.printed(only(tmp_path), rank=None, follow=False, skip=True))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("rank-0003@node2.out", ""),
        ("rank-0001@node2.out", "a record of rank 1 on node2, where the plan does not have it"),
        ("rank-0009@node1.err", "a record of rank 9 on node1, where the plan does not have it"),
        ("rank-0001@node2.restart-1.out", ""),
    ],
)
def test_a_log_of_a_rank_is_of_the_host_that_the_plan_gives_it(tmp_path: Path, log: str, said: str) -> None:
    make_run(tmp_path, placed=[2, 2])
    liar = Liar({"output": {"output": [[log, "a\n"]], "more": False, "at": 0}})
    known = LocatedJob(only(tmp_path).state, liar)
    with pytest.raises(MusterError, match=said) if said else contextlib.nullcontext():
        assert [line.text for line in jobs.printed(known, rank=None, follow=False)] == ["a\n"]


def test_a_job_of_another_version_does_not_say_where_its_ranks_are(tmp_path: Path) -> None:
    make_run(tmp_path, placed=[])
    with pytest.raises(MusterError, match="does not list the hosts of its ranks: it was launched by"):
        assert only(tmp_path).state.hosts_by_rank
    make_run(tmp_path / "new", placed=[3, 1])
    assert only(tmp_path / "new").state.hosts_by_rank == {0: "node1", 1: "node1", 2: "node1", 3: "node2"}


def test_a_job_of_another_terminal_is_not_stopped_from_here(tmp_path: Path) -> None:
    run = make_run(tmp_path / "job")
    lock = os.open(run.parent / "lock.node1", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with pytest.raises(UsageError, match="is process 7 on laptop, in a terminal, where no agent"):
        next(jobs.stop(only(run.parent), "by me"))
    os.close(lock)


def test_only_a_second_stop_kills_a_fetching_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock, killed = make_run(tmp_path), [0.0], list[float]()
    descriptor = hold(run)

    def tick(seconds: float) -> None:
        clock[0] += 60.0
        if not killed and clock[0] == 600.0:
            (run / "result.json").write_text(json.dumps(FAILED))

    def end(run: Path, driver: object, by: str, grace: float, *, force: bool) -> bool:
        (run / "stop.json").touch()
        killed.extend([clock[0]] if force else [])
        return True

    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=tick, monotonic=lambda: clock[0]))
    monkeypatch.setattr(wire_runs, "end_driver", end)
    *_, last = jobs.stop(only(tmp_path), "by me", 30.0)
    assert (last.running, killed) == (False, [])
    (run / "result.json").unlink()
    *_, last = jobs.stop(only(tmp_path), "by me", 30.0)
    assert (last.running, killed) == (True, [660.0])
    os.close(descriptor)


def test_a_process_that_is_not_the_driver_is_never_signalled(tmp_path: Path) -> None:
    run = make_run(tmp_path, driver={**identity(), "start": 1})  # this process, but one that started earlier
    descriptor = hold(run)
    with pytest.raises(UsageError, match="press Ctrl-C there"):
        next(jobs.stop(only(tmp_path), "by me"))
    os.close(descriptor)


@dataclasses.dataclass
class Liar:
    """A host that answers what it likes."""

    answers: Frame
    host: str = "node1"
    content: bytes = b""

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **words: Any
    ) -> Answer:
        return request.read(self.answers[request.name], self.content)


PLANTED = (
    *("muster.toml", "pyproject.toml", "hosts.txt", ".muster/ssh_config", "fabfile.py", "sitecustomize.py"),
    *(".envrc", ".git/config", "logs/.GIT/config", "logs/git~1", "HEAD", "logs/rank-0000@a/b.out", "", "."),
    *("../../.bashrc", "/etc/passwd", "logs/../../x", "a\0b", "./job.json", "Job.json", "job.json\n"),
    *(
        "slurm.json",
        "./slurm.json",
        "Slurm.JSON",
        "\u017flurm.json",
        "stop.json",
        "report.html",
        "hosts.json",
    ),
    *("lock.driver", "logs/slurm.json", "returned/rank-0.py"),
)


@pytest.mark.parametrize("bring", [fetch, snapshot])
def test_a_host_brings_only_files_that_a_run_has(
    tmp_path: Path, bring: Callable[[LocatedJob, Path, FeatureFiles], object]
) -> None:
    """With a slurm.json of the host, `muster stop` would end the job of Slurm that the host has chosen."""
    files = [[name, 2] for name in (*PLANTED, "job.json", "logs/rank-0000@node1.out")]
    liar = Liar({"files": {"files": files}, "read": {}}, content=b"{}")
    here = tmp_path / "here"
    here.mkdir()
    bring(LocatedJob(only(make_run(tmp_path / "there").parent).state, liar), here, FILES)
    taken = {path.name for path in tmp_path.rglob("*") if path.is_file() and "there" not in path.parts}
    assert taken - {*METRICS} == {"job.json", "rank-0000@node1.out"}
    assert not any_mark(here)


def test_a_host_brings_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.deploy.core.job.fetch.MOST_FILES", 100)
    many = [[f"logs/rank-{rank:04d}@node1.out", 0] for rank in range(101)]
    liar = Liar({"files": {"files": many}})
    located = LocatedJob(only(make_run(tmp_path / "there").parent).state, liar)
    for bring in (fetch, snapshot):
        with pytest.raises(MusterError, match=r"node1: the run has 101 files in .*; the limit is 100"):
            bring(located, tmp_path / "runs", FILES)


def test_every_file_that_a_driver_writes_into_a_run_is_brought(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "there", RECORD["job"], detached=True)
    for attempt in (0, 1):
        plan = make_plan("node1 slots=2", job=RECORD["job"], attempt=attempt)
        folder.begin(plan)
        for name in (SAMPLES, PACE, f"stacks{restart_suffix(attempt)}.txt"):
            folder.append(name, "{}\n")
        folder.keep_launched({})
        folder.on_event(JobEvent(at=1.0, type="rank.started", job=RECORD["job"], attempt=attempt))
        folder.on_event(Output(1, "node1", "err", "line\n"))
        folder.on_event(LauncherOutput("node1", "line\n"))
        folder.say("line")
        result = folder.ended(LaunchResult(plan, 1.0, 2.0, None, {}))
    for name in (*METRICS, name_of(1, 0), name_of(1, 2)):
        folder.keep(name, "{}\n")
    folder.finish(result, "DONE")
    (folder.path / "driver.log").write_text("what a detached driver prints\n")
    fetched = fetch(only(folder.path.parent), tmp_path / "runs", FILES)
    names = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    assert {str(path.relative_to(fetched)) for path in fetched.rglob("*") if path.is_file()} == names - {
        "lock.driver"
    }


@pytest.mark.parametrize(
    "job", ["/tmp/20261121-120000-abcd", "../20261121-120000-abcd", "20261121-120000-abcd\n", "x\x1b[2J"]
)
def test_a_host_names_no_job_by_what_is_no_id(job: str) -> None:
    answer = {
        **RECORD,
        "job": job,
        "state": "done",
        "ended": 1.0,
        "exit_status": 0,
        "why": "",
        "last_line": "",
    }
    answer |= {"folder": "/", "driver": {"host": "laptop", "pid": 7}}
    assert jobs.jobs_at([Liar({"jobs": {"jobs": [answer]}})]) == []
    answer["job"] = RECORD["job"]
    assert len(jobs.jobs_at([Liar({"jobs": {"jobs": [answer]}})])) == 1


def fetch_from(tmp_path: Path, files: object, content: bytes = b"") -> Path:
    liar = Liar({"files": {"files": files}, "read": {}}, content=content)
    known = LocatedJob(only(make_run(tmp_path / "there").parent).state, liar)
    try:
        return fetch(known, tmp_path / "runs", FILES)
    finally:
        assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([["verdict.txt", 1 << 62]], "the run has 4398046511104 MiB in "),
        ([["log", -1]], "its answer to files"),
        ([["log", "1"]], "its answer to files"),
        ([["log"]], "its answer to files"),
        ("log", "its answer to files"),
        ([["verdict.txt", 10]], "verdict.txt ends before its 10 bytes"),
        ([["verdict.txt", 0], ["verdict.txt", 0]], "verdict.txt: File exists"),
    ],
)
def test_no_host_fills_this_machine_by_lying_of_a_run(tmp_path: Path, files: object, said: str) -> None:
    with pytest.raises((MusterError, ValueError), match=said):
        fetch_from(tmp_path, files)
    assert not list((tmp_path / "runs").iterdir())


def test_no_more_of_a_file_is_taken_than_was_announced(tmp_path: Path) -> None:
    fetched = fetch_from(tmp_path, [["logs/order", 3]], b"abcdef")
    assert (fetched / "logs" / "order").read_bytes() == b"abc"


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("total", "spare"), [(100 << 30, 1 << 30), (2000 << 20, 100 << 20)])
def test_a_host_leaves_some_of_this_disk_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, spare: int
) -> None:
    most = (1 << 20) + 4096
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(total, total - spare - most, spare + most))
    monkeypatch.setattr("muster.deploy.core.job.fetch.CHUNK", most)
    for name, size in (("a", most + 1), ("b", most + spare)):
        with pytest.raises(MusterError, match="room for 1 MiB, and"):
            fetch_from(tmp_path / name, [["verdict.txt", size]])
    with pytest.raises(MusterError, match="room for 1 MiB, and"):
        fetch_from(tmp_path / "small", [[f"plan.restart-{number}.txt", 0] for number in range(258)])
    fetched = fetch_from(tmp_path / "c", [["verdict.txt", most]], bytes(most))
    assert (fetched / "verdict.txt").stat().st_size == most
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(total, total - spare + 5, spare - 5))
    with pytest.raises(MusterError, match="room for 0 MiB, and"):
        fetch_from(tmp_path / "d", [["verdict.txt", 1]])


def test_a_huge_verdict_is_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "there")
    (run / "result.json").write_text(json.dumps({"exit_status": 0, "ended": 1.0}))
    (run / "verdict.txt").write_text("x" * ((1 << 20) + 1))
    monkeypatch.setattr(job_commands, "end_with_page", lambda folder: None)
    job_commands._end(only(run.parent), tmp_path / "runs", Screen(sys.stdout))
    assert capsys.readouterr().out.splitlines()[0] == "verdict.txt is left out: it has more than 1 MiB"


def test_two_may_bring_the_same_run_here_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "there")
    (run / "logs" / "order").write_bytes(b"whole")
    one, runs = only(run.parent), tmp_path / "runs"

    class Slow(LocalRuns):
        """Another has brought the run here between the first file and the next."""

        host = "node1"

        def do_once(self) -> None:
            self.do_once = lambda: None  # type: ignore[method-assign]
            assert (fetch(one, runs, FILES) / "logs" / "order").read_bytes() == b"whole"

        def ask(
            self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **words: Any
        ) -> Answer:
            if request.name == "read":
                self.do_once()
            return super().ask(request, payload, seconds=seconds, **words)

    fetched = fetch(LocatedJob(one.state, Slow(run.parent)), runs, FILES)
    assert (fetched / "logs" / "order").read_bytes() == b"whole"
    assert [path.name for path in runs.iterdir()] == [RECORD["job"]]


def test_a_job_whose_folder_has_gone_meanwhile_is_named(tmp_path: Path) -> None:
    known = only(make_run(tmp_path).parent)
    shutil.rmtree(tmp_path / RECORD["job"])
    with pytest.raises(MusterError, match=f"{RECORD['job']}: its folder {tmp_path}.* is gone"):
        jobs.state_of(known)


def test_a_malformed_job_of_a_host_costs_only_itself(tmp_path: Path) -> None:
    make_run(tmp_path)
    told = dataclasses.asdict(only(tmp_path).state)
    other = {**told, "job": "20261121-120000-0000"}
    listed = jobs.jobs_at([Liar({"jobs": {"jobs": [{**told, "ranks": "many"}, other]}})])
    assert [one.state.job for one in listed] == [other["job"]]


def test_a_host_that_fails_hides_the_jobs_of_no_other(tmp_path: Path) -> None:
    make_run(tmp_path)

    class Failing(Liar):
        def ask(self, *request: Any, **words: Any) -> Any:
            raise MusterError("no answer", host=self.host)

    errors: dict[str, MusterError] = {}
    found = jobs.jobs_at([LocalRuns(tmp_path), Failing({})], errors)
    assert [known.state.job for known in found] == [RECORD["job"]]
    assert {host: error.reason for host, error in errors.items()} == {"node1": "no answer"}


def test_the_table_shows_nothing_that_drives_a_terminal(tmp_path: Path) -> None:
    make_run(tmp_path, launcher="mpi\x1b[2Jrun")
    assert "\x1b" not in job_table.table([only(tmp_path).state])
    assert "\x1b" not in job_table.details(only(tmp_path).state)


def test_a_running_job_that_prints_its_steps_has_a_time_that_is_left(tmp_path: Path) -> None:
    make_run(tmp_path, started=time.time() - 100)
    state = dataclasses.replace(only(tmp_path).state, state="running", last_line="step 50/200 loss 1.0")
    assert "left     about 5 min " in job_table.details(state)
    assert "left  " not in job_table.details(dataclasses.replace(state, attempt=1))


@pytest.mark.parametrize(("kind", "lines"), [(Logs, 3), (Attach, 3), (Attach, 0)])
def test_a_screen_that_takes_nothing_ends_what_is_shown_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[JobOptions], lines: int
) -> None:
    run = make_run(tmp_path / "runs")
    (run / "result.json").write_text(json.dumps({**FAILED, "exit_status": 0}))
    (run / "verdict.txt").write_text("DONE\n")
    line = LogLine(0, "node1", "out", "text\n")
    left = iter([line] * lines)
    monkeypatch.setattr(jobs, "printed", lambda *_, **__: left)
    monkeypatch.chdir(tmp_path)
    with Path("/dev/full").open("w") as full, pytest.raises(Exit) as end:
        monkeypatch.setattr("sys.stdout", full)
        execute(kind(job=RECORD["job"]))
    assert end.value.code == 1
    assert len([*left]) == max(0, lines - 1)


def test_jobs_of_a_parent_folder_are_found_and_followed_to_their_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "runs")
    (folder / "result.json").write_text(json.dumps(FAILED))
    (folder / "verdict.txt").write_text("FAILED  rank 1\n")
    (tmp_path / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "src" / "deep")
    assert run(["status", RECORD["job"]]) == 0
    assert RECORD["job"] in capsys.readouterr().out
    assert run(["logs", "-f", RECORD["job"][-4:]]) == FAILED["exit_status"]
    assert "FAILED  rank 1\n" in capsys.readouterr().out
    assert not (tmp_path / "src" / "deep" / "runs").exists()
