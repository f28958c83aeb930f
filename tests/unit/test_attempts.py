"""A job from its first attempt to its last: what was announced has an end, whatever comes after it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.scripts.json_fields import DOCUMENTS
from muster.deploy.core.connect.kept_connections import KeptConnections
from muster.deploy.core.connect.pipe import SilentError
from muster.deploy.core.connect.requests import FILE_PART, Nothing, Payload, Request, WrittenFiles
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import Facts
from muster.deploy.core.hosts.stuck_processes import StuckProcesses
from muster.deploy.core.job import job as attempts
from muster.deploy.core.job import loop as run
from muster.deploy.core.job import restart_policy
from muster.deploy.core.job.events import Event, Output, Waiting
from muster.deploy.core.job.feature import Feature, Features, Start
from muster.deploy.core.job.job import Job
from muster.deploy.core.job.restart_policy import Policy
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import end_unstarted, verdict
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.core.timings import TimedPart
from muster.deploy.core.wire.job_folders import RESERVES, JobFolders
from muster.deploy.features.all_features import features_of
from muster.deploy.features.metrics.driver import joined
from muster.deploy.features.why.kernel import (
    KERNEL_MESSAGES,
    MEMORY_KILLS,
    KernelLines,
    KernelMessages,
    MemoryKills,
)
from muster.deploy.features.written_files.driver import OUTPUTS, Written
from tests.unit.plans import TREE, make_plan
from tests.unit.test_execute import Hosts

PLAN = make_plan("node[1-2] slots=2")
DONE = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=None, ends={})
RESULT_FIELDS = next(fields for title, _, fields in DOCUMENTS if title == "result.json")
FAILED = dataclasses.replace(DONE, failure=Failure("rank", "exit status 5", 5, host="node2", rank=3))


@pytest.mark.parametrize(
    ("parts", "ran", "time_taken"),
    [
        ({}, 6.02, "6.0 s"),
        ({"Python": (0.0, 0.2), "delivery": (0.8, 1.0)}, 6.0, "7.0 s"),
        (
            {"Python": (0.0, 0.2), "connecting": (0.1, 0.4), "delivery": (0.5, 64.1)},
            3.1,
            "1 min 7 s: 1 min 4 s delivery, 3.1 s ranks",
        ),
        (
            {"connecting": (2.0, 5.0), "image": (5.0, 15.5), "delivery": (15.5, 15.6)},
            10.0,
            "23.6 s: 3.0 s connecting, 10.5 s image, 10.0 s ranks",
        ),
        (
            {"end of the old ranks": (0.5, 9.0), "connecting": (9.0, 9.5), "delivery": (9.5, 10.0)},
            6.0,
            "7.0 s",
        ),
    ],
)
def test_the_time_in_the_verdict_begins_with_the_command_and_names_a_long_start(
    parts: dict[str, tuple[float, float]], ran: float, time_taken: str, tmp_path: Path
) -> None:
    timings = tuple(TimedPart(name, *times) for name, times in parts.items())
    done = dataclasses.replace(DONE, started=100.0, ended=100.0 + ran, timings=timings)
    folder = RunFolder(tmp_path, "j")
    assert verdict(done, folder).splitlines()[1] == f"DONE    4 ranks on 2 hosts, mpirun, {time_taken}"
    failed = verdict(dataclasses.replace(done, failure=FAILED.failure), folder)
    total, _, long = time_taken.partition(":")
    assert f"        after {total} of 4 ranks on 2 hosts, mpirun{long and f':{long}'}\n" in failed


def uninterrupted(call: Callable[[], LaunchResult]) -> LaunchResult:
    """What it returns; an interrupt that got through would end every other test too."""
    try:
        return call()
    except KeyboardInterrupt:
        return pytest.fail("the interrupt got through")


def looping(execute: Callable[..., LaunchResult]) -> Callable[..., object]:
    """A loop of a launch that ends so."""
    return lambda *given, **options: SimpleNamespace(run=lambda: execute(*given, **options))


class Head:
    """An agent that may be unable to say what is asked, or be asked at a bad moment."""

    host = "node1"
    ended = False
    error: BaseException | None = None

    def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        if request is FILE_PART and self.error:
            raise self.error
        if request is KERNEL_MESSAGES:
            return KernelLines((), "")
        if request is MEMORY_KILLS:
            return MemoryKills(0, None)
        return Payload(b"{}") if request is FILE_PART else Nothing()

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        written = Written(WrittenFiles(0, 0, more=False), WrittenFiles(3, 5 << 20, more=False), "a" * 32)
        future.set_result(written if request is OUTPUTS else self.ask(request, payload, **words))
        return future

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result(0)


class Connected:
    """A cluster of one agent."""

    def __init__(self, *ignored: object, **options: object) -> None:
        self.channels = {"node1": Head()}
        self.silent: dict[str, SilentError] = {}
        self.facts: dict[str, Facts] = {}
        self.hosts: tuple[Any, ...] = ()

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *ignored: object) -> None:
        pass

    def detach_spares(self, names: object) -> KeptConnections:
        return KeptConnections()

    def drop_reports(self) -> None:
        pass


def attempts_in(folder: RunFolder, max_restarts: int = 0) -> Job:
    spec = LaunchSpec(
        job="j",
        program=Program(module="train"),
        hosts=hostfile.parse("node[1-2] slots=2"),
        tree=TREE,
        library=TREE,
        start_timeout=1.0,
        max_restarts=max_restarts,
    )
    return Job(spec, lambda host: pytest.fail("no way there"), folder, features_of(spec))


@pytest.fixture
def carry_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Carry out a job whose one attempt ends so; returns its result.json."""
    monkeypatch.setattr(attempts, "Cluster", Connected)
    monkeypatch.setattr(attempts, "make_plan", lambda *ignored, **options: PLAN)
    monkeypatch.setattr(attempts, "deliver", lambda *ignored: None)

    def carry(
        end: LaunchResult | BaseException, fetch: BaseException | None = None, max_restarts: int = 0
    ) -> dict[str, Any]:
        def execute(*ignored: object, **limits: object) -> LaunchResult:
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(attempts, "LaunchLoop", looping(execute))
        monkeypatch.setattr(Head, "error", fetch)
        folder = RunFolder(tmp_path, "j", detached=True)
        uninterrupted(attempts_in(folder, max_restarts=max_restarts).run)
        found: dict[str, Any] = json.loads((folder.path / "result.json").read_text())
        return found

    return carry


def test_the_verdict_and_the_record_name_the_hosts_that_have_left_the_job(tmp_path: Path) -> None:
    left_out = {"node3": "the SSH connection to its agent is gone"}
    folder = RunFolder(tmp_path, "20261120-120000-abcd")
    folder.begin(PLAN, left_out)
    (record,) = JobFolders(tmp_path, inside=".").do_jobs({"do": "jobs"}, b"")["jobs"]
    assert record["left_out"] == [{"host": "node3", "why": left_out["node3"]}]
    text = verdict(dataclasses.replace(DONE, left_out=left_out), folder)
    assert "        left out: node3: the SSH connection to its agent is gone\n" in text


@pytest.mark.parametrize("extra", [MusterError("cannot be read"), KeyboardInterrupt(15)])
@pytest.mark.parametrize(("end", "status"), [(DONE, 0), (FAILED, 5)])
def test_no_late_error_costs_a_job_its_verdict(
    carry_out: Callable[..., dict[str, Any]], end: LaunchResult, status: int, extra: BaseException
) -> None:
    assert carry_out(end, extra)["exit_status"] == status


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(15), 143), (MusterError("no room"), 1)])
def test_what_was_announced_has_an_end(
    carry_out: Callable[..., dict[str, Any]], error: BaseException, status: int
) -> None:
    assert carry_out(error)["exit_status"] == status


def test_an_interrupt_as_soon_as_others_can_see_the_job_leaves_a_result(
    carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunFolder._record

    def interrupted(self: RunFolder, name: str, content: Any) -> None:
        record(self, name, content)
        if name == "job.json":
            raise KeyboardInterrupt(15)

    monkeypatch.setattr(RunFolder, "_record", interrupted)
    assert carry_out(DONE)["exit_status"] == 143


def test_an_interrupt_while_the_end_of_a_job_is_explained_changes_nothing(
    carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*ignored: object) -> LaunchResult:
        raise KeyboardInterrupt(2)

    monkeypatch.setattr(KernelMessages, "ended", interrupted)
    assert carry_out(FAILED)["exit_status"] == 5


def test_an_interrupt_at_the_message_of_a_restart_ends_the_job(
    carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: RunFolder, text: str) -> None:
        if "restart 1 of 1" in text:
            raise KeyboardInterrupt(2)

    monkeypatch.setattr(RunFolder, "say", interrupted)
    monkeypatch.setattr(restart_policy, "BACKOFF_SECONDS", (0.0,))
    assert carry_out(FAILED, max_restarts=1)["exit_status"] == 130


def test_what_was_not_announced_leaves_no_result(
    carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*ignored: object, **options: object) -> LaunchPlan:
        raise MusterError("unreachable")

    monkeypatch.setattr(attempts, "make_plan", unreachable)
    with pytest.raises(MusterError, match="unreachable"):
        carry_out(DONE)
    assert not list(tmp_path.iterdir())


def full(path: Path) -> None:
    """Have the disk full when this file is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/full")


def no_room_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the disk full when a file with this name is put into place."""
    replace = os.replace

    def put(draft: str, path: str | Path) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), draft)
        replace(draft, path)

    monkeypatch.setattr(os, "replace", put)


def test_a_log_for_which_there_is_no_room_here_ends_no_job(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.begin(PLAN)
    full(folder.logs / "rank-0000@node1.out")
    for rank in (0, 1):  # the second would fit, but a log with a hole is none
        folder.on_event(Output(rank, "node1", "out", "line\n"))
    assert "no space left on the disk of" in folder.problem
    assert not folder.log_of(1, "node1", "out").exists()
    folder.finish(DONE, "DONE")
    assert json.loads((folder.path / "result.json").read_text())["exit_status"] == 0


def test_what_is_said_before_there_is_a_folder_is_kept_and_costs_no_log(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.say("node2: fetching it")
    assert not folder.path.exists()
    folder.begin(PLAN)
    folder.on_event(Output(0, "node1", "out", "line\n"))
    assert folder.log_of(0, "node1", "out").read_text() == "line\n"
    assert (folder.logs / "driver.log").read_text() == "node2: fetching it\n"
    assert folder.problem == ""


def test_a_job_waits_for_its_image_before_its_first_start_alone(
    carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once it was announced, a record that it waits would hide its hosts and its attempt."""
    carry_out(DONE)  # its stand-ins hold for this test
    ends = iter([FAILED, DONE])

    def make_plan(start: Start, *ignored: object) -> LaunchPlan:
        start.emit(Waiting("node2: fetching it"))
        return PLAN

    monkeypatch.setattr(attempts, "make_plan", make_plan)
    monkeypatch.setattr(attempts, "LaunchLoop", looping(lambda *_, **__: next(ends)))
    monkeypatch.setattr(restart_policy, "BACKOFF_SECONDS", (0.0,))
    waits = list[str]()

    class Waits(Feature):
        def on_event(self, event: Event) -> None:
            if isinstance(event, Waiting):
                waits.append(event.why)

    folder = RunFolder(tmp_path / "other", "j", detached=True)
    given = attempts_in(folder, max_restarts=1).spec
    Job(given, lambda host: pytest.fail("no way"), folder, Features((Waits(),))).run()
    assert waits == ["node2: fetching it"]
    assert (folder.logs / "driver.log").read_text().count("node2: fetching it") == 2


@pytest.mark.parametrize(("end", "status"), [(DONE, 0), (FAILED, 5)])
@pytest.mark.usefixtures("carry_out")
def test_a_job_whose_result_cannot_be_written_ends_as_its_ranks_did_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: LaunchResult, status: int
) -> None:
    monkeypatch.setattr(attempts, "LaunchLoop", looping(lambda *_, **__: end))
    no_room_for(monkeypatch, "result.json")
    result = attempts_in(folder := RunFolder(tmp_path, "j")).run()
    assert (result.exit_status, result.failure) == (status, end.failure)
    said = "the result could not be written here: no space left on the disk of"
    assert result.notes[-1].startswith(said if status else f"every rank ended with 0; {said}")
    assert folder.unwritten.startswith("no space left")
    assert (folder.path / "verdict.txt").exists()


@pytest.mark.usefixtures("carry_out")
def test_a_run_whose_folder_was_removed_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(*ignored: Any, **limits: Any) -> LaunchResult:
        shutil.rmtree(tmp_path / "j")
        return DONE

    monkeypatch.setattr(attempts, "LaunchLoop", looping(execute))
    result = attempts_in(folder := RunFolder(tmp_path, "j")).run()
    assert (result.exit_status, result.failure) == (0, None)
    assert "every rank ended with 0; the result could not be written here:" in verdict(result, folder)
    assert "result.json" in folder.unwritten


def test_a_result_fits_where_the_verdict_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.begin(PLAN)
    no_room_for(monkeypatch, "verdict.txt")
    assert "no space left on the disk of" in folder.finish(DONE, "DONE")
    assert json.loads((folder.path / "result.json").read_text())["exit_status"] == 0


def test_a_job_that_never_started_has_the_fields_of_one_that_did(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j", detached=True)
    folder.wait(PLAN.spec, "Slurm's job 7 waits")
    result = end_unstarted(folder.path, "stopped", "muster stop, by me", 143)
    written = json.loads((folder.path / "result.json").read_text())
    assert written == result.as_json()
    assert list(written) == list(DONE.as_json())
    assert list(written["first_failure"]) == list(FAILED.as_json()["first_failure"])
    known = {path.partition("[")[0].partition(".")[0] for path, _ in RESULT_FIELDS}
    assert known - {*written} == {"why", "late", "written", "memory_kills", "kernel", "kernel_unread"}
    text = (folder.path / "verdict.txt").read_text()
    assert text == f"\nSTOPPED by muster stop, by me\n        logs: {folder.logs}\n"


def test_a_job_that_has_no_room_for_its_folder_does_not_start(
    tmp_path: Path, carry_out: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room_for(monkeypatch, "job.json")
    with pytest.raises(MusterError, match="cannot begin the run's folder: no space left on the disk of"):
        carry_out(DONE)


def test_room_for_the_result_is_kept_until_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.begin(PLAN)
    assert sum((folder.path / name).stat().st_size for name in RESERVES) >= 1 << 18
    files = JobFolders(tmp_path, inside=".").do_files({"job": "j"}, b"")["files"]
    assert not {*RESERVES} & {name for name, _ in files}
    folder.finish(DONE, "DONE")
    assert not any((folder.path / name).exists() for name in RESERVES)


def test_an_interrupt_during_the_end_leaves_the_verdict_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, stops = Hosts(PLAN), []
    whole = run.LaunchLoop._stop

    def stop(self: run.LaunchLoop) -> dict[str, StuckProcesses]:
        stops.append(whole(self))
        if len(stops) == 1:
            raise KeyboardInterrupt(15)
        return stops[-1]

    monkeypatch.setattr(run.LaunchLoop, "_stop", stop)
    hosts.start_all()
    hosts.end(3, code=5)
    result = uninterrupted(hosts.run)
    assert (result.exit_status, len(stops)) == (5, 2)


@pytest.mark.parametrize(
    ("earlier", "later", "both"),
    [
        (None, [1, 2], [1, 2]),
        ([1, 2], None, [1, 2]),
        ([1, 2, 3, 4], [4, 5], [1, 2, 3, 4, 5]),  # another head, from a checkpoint
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),  # the same head, whose file has grown
    ],
)
def test_metrics_are_one_story(earlier: list[int] | None, later: list[int] | None, both: list[int]) -> None:
    def text(epochs: list[int] | None, loss: int) -> str | None:
        lines = [f'{{"epoch": {epoch}, "loss": {loss}}}\n' for epoch in epochs or ()]
        return "".join(lines) if epochs else None

    found = [json.loads(line) for line in (joined(text(earlier, 1), text(later, 2)) or "").splitlines()]
    assert [one["epoch"] for one in found] == both
    assert all(one["loss"] == 2 for one in found if one["epoch"] in (later or ()))


def test_metrics_of_an_attempt_that_numbers_no_line_cost_none_of_an_earlier_head() -> None:
    earlier, begins = '{"epoch": 1}\n', '{"began": 7}\n'
    assert joined(earlier, begins) == earlier + begins
    assert joined(begins, begins + begins) == begins + begins  # the same head, whose file has grown


@pytest.mark.usefixtures("carry_out")
def test_the_head_has_the_result_before_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = Head.ask

    def ask(self: Head, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        asked.append(words.get("name", request.name))
        return whole(self, request, payload, **words)

    monkeypatch.setattr(attempts, "LaunchLoop", looping(lambda *_, **__: DONE))
    monkeypatch.setattr(Head, "ask", ask)
    attempts_in(RunFolder(tmp_path, "j")).run()
    assert asked.index("result.json") < asked.index(FILE_PART.name)


@pytest.mark.usefixtures("carry_out")
def test_an_earlier_head_gets_the_record_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `muster stop` may ask it, or finds that the records of both contradict each other."""
    recorded: list[str] = []

    class Recording(Head):
        def __init__(self, host: str) -> None:
            self.host = host

        def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
            recorded.extend([self.host] if words.get("name") == "job.json" else [])
            return super().post(request, payload, **words)

    class Both(Connected):
        def __init__(self, *ignored: object, **options: object) -> None:
            super().__init__()
            self.channels = {name: Recording(name) for name in ("node1", "node2", "node3")}

    monkeypatch.setattr(attempts, "Cluster", Both)
    monkeypatch.setattr(attempts, "LaunchLoop", looping(lambda *_, **__: DONE))
    job = attempts_in(RunFolder(tmp_path, "j"))
    job._results = [dataclasses.replace(FAILED, plan=make_plan("node[2-3] slots=2"))]
    job.run()
    assert {*recorded} == {"node1", "node2"}


@pytest.mark.usefixtures("carry_out")
def test_metrics_that_are_lost_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = dataclasses.replace(DONE, failure=Failure("host", "gone", 3, host="node1"))
    ends = iter([(lost, MusterError("gone")), (DONE, None)])

    def execute(*ignored: object, **limits: float) -> LaunchResult:
        end, error = next(ends)
        monkeypatch.setattr(Head, "error", error)
        monkeypatch.setattr(Head, "host", "node1" if error else "node2")
        return end

    monkeypatch.setattr(attempts, "LaunchLoop", looping(execute))
    monkeypatch.setattr("muster.deploy.core.job.restart_policy.BACKOFF_SECONDS", (0.0,))
    job = attempts_in(RunFolder(tmp_path, "j"))
    job.spec = dataclasses.replace(job.spec, max_restarts=1)
    job._policy = Policy(1, 1)
    out = "/home/ml/.muster/jobs/20261120-120000-abcd/out"
    rest = f"the rest is in {out} on node1"
    said = f"metrics.jsonl and steps.jsonl are incomplete: {rest}; muster get 20261120-120000-abcd fetches it"
    assert job.run().notes == (said,)
