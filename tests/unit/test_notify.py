"""What a launch reports to others: `--notify`, at a stall and at the end."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from muster.deploy.cli.commands import commands
from muster.deploy.cli.launch import spec_of
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.cli.project import with_defaults
from muster.deploy.core.errors import UsageError
from muster.deploy.core.job.events import JobEvent
from muster.deploy.core.job.result import Failure, LaunchResult, interruption
from muster.deploy.core.plan.spec import Program
from muster.deploy.features.notify import driver as notifying
from muster.deploy.features.notify.driver import Notify
from muster.deploy.features.notify.options import NotifyOptions
from tests.command_lines import parse
from tests.unit.plans import make_plan

PLAN = make_plan(
    "node[1-2] slots=2",
    program=Program(script="train.py", args=("--token", "s3cret")),
    env=(("HF_TOKEN", "s3cret"),),
)
FAILURE = Failure("rank", "exit status 5", 5, host="node2", rank=3, at=2.0, tail=("s3cret",))
FAILED = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=FAILURE, ends={}, last_line="s3cret")
DONE = dataclasses.replace(FAILED, failure=None)
STOPPED = dataclasses.replace(FAILED, failure=interruption(KeyboardInterrupt(2), 2.0))


def end(command: str, result: LaunchResult = DONE) -> str:
    """The end of a job with this value of --notify; returns the note for the user."""
    return Notify(PLAN.spec.having(NotifyOptions(command))).closed(result)


@pytest.mark.parametrize(
    ("result", "state", "status"), [(DONE, "done", 0), (FAILED, "failed", 5), (STOPPED, "stopped", 130)]
)
def test_a_command_gets_the_end(tmp_path: Path, result: LaunchResult, state: str, status: int) -> None:
    target = tmp_path / "told of it"
    assert end(shlex.join(["tee", str(target)]), result) == ""
    content = target.read_text()
    told = json.loads(content)
    assert (told["state"], told["exit_status"], told["ranks"]) == (state, status, 4)
    assert told["hosts"] == ["node1", "node2"]
    assert "s3cret" not in content


def events_of_a_stall() -> list[JobEvent]:
    """An attempt that began at 10, stalled from 20 to 99 and was noted at 90."""
    started = JobEvent(
        at=10.0, type="attempt.started", job="j", attempt=1, hosts=("node1", "node2"), ranks=4, text="t"
    )
    why = "rank 3 on node2 has not come to all_reduce #41 (slow.py:8)"
    stopped = JobEvent(at=90.0, type="steps.stopped", job="j", attempt=1, since=20.0, text=why)
    resumed = JobEvent(
        at=99.0, type="steps.resumed", job="j", attempt=1, since=20.0, text="steps again after 79 s"
    )
    return [started, stopped, dataclasses.replace(started, type="rank.printed"), resumed]


def test_a_command_gets_a_stall_and_its_end_in_the_fields_of_the_end(tmp_path: Path) -> None:
    target = tmp_path / "told"
    command = shlex.join(["tee", "-a", str(target)])
    notify = Notify(PLAN.spec.having(NotifyOptions(command)))
    for event in events_of_a_stall():
        notify.on_event(event)
    assert notify.over(DONE) == DONE
    assert notify.closed(DONE) == ""
    stopped, resumed, ended = map(json.loads, target.read_text().splitlines())
    assert [*stopped] == [*resumed] == [*ended]
    assert (stopped["event"], stopped["state"], stopped["hosts"]) == (
        "steps.stopped",
        "running",
        ["node1", "node2"],
    )
    assert stopped["text"] == (
        "no step for 1 min 10 s: rank 3 on node2 has not come to all_reduce #41 (slow.py:8)"
    )
    assert (resumed["event"], resumed["text"]) == ("steps.resumed", "steps again after 79 s")
    assert ended["event"] == "job.ended"


def test_a_receiver_that_is_gone_is_named_once_and_delays_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = shlex.join(["sh", "-c", f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.05; done; exit 7"])
    notify = Notify(PLAN.spec.having(NotifyOptions(held)))
    for event in events_of_a_stall():
        notify.on_event(event)  # while the command is held
    gate.touch()
    assert notify.over(DONE).notes == ("--notify sh: it ended with status 7",)


def test_a_launch_without_notify_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "send", lambda target, values: pytest.fail("sent"))
    notify = Notify(PLAN.spec)
    for event in events_of_a_stall():
        notify.on_event(event)
    assert notify.over(DONE) == DONE
    assert notify.closed(DONE) == ""


def test_the_plan_shows_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "muster.toml").write_text('notify = "curl -d @- https://chat.example/s3cret"\nnp = 1\n')
    (tmp_path / "train.py").touch()
    launch = commands()["launch"]
    values, sources = with_defaults(launch, parse(["launch", "train.py"]).values)
    options = launch.made(values, sources=sources)
    assert isinstance(options, LaunchOptions)
    assert "--notify '***': muster.toml:1" in spec_of(options, columns=None).sources


def test_a_command_that_fails_is_named_without_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end("false") == "--notify false: it ended with status 1"
    assert "No such file" in end("/no/such/program")
    monkeypatch.setattr(notifying, "COMMAND_SECONDS", 0.1)
    assert end("sleep 60") == "--notify sleep: it had not ended after 0 s"


@pytest.mark.parametrize("command", ["'open", " ", "''", "no-such-program --now"])
def test_what_is_no_command_is_refused_before_the_launch(command: str) -> None:
    with pytest.raises(UsageError, match="--notify: "):
        NotifyOptions(command).check({})


def test_a_command_is_accepted() -> None:
    NotifyOptions("tee --append now").check({})
    NotifyOptions("no-such-program --now").check({"detach": True})


@pytest.mark.parametrize("url", ["https://chat.example/s3cret", "HTTP://chat.example/s3cret -x"])
def test_a_url_in_place_of_a_command_names_curl(url: str) -> None:
    for given in ({}, {"detach": True}):
        with pytest.raises(UsageError) as refused:
            NotifyOptions(url).check(given)
        assert str(refused.value) == "--notify URL was removed: use --notify 'curl -d @- URL'"


# -- ranks that start a launcher of ranks are noted: each is a job of its own --
