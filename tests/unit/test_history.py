"""Events of a job: each event is emitted once, in order, with the fields that the reference lists."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.job import state
from muster.deploy.core.job.attempt_record import hidden_values, launched
from muster.deploy.core.job.events import (
    FAILURES,
    MOST_FAILURES,
    Event,
    JobEvent,
    JobHistory,
    Output,
    of_failure,
)
from muster.deploy.core.job.feature import Features
from muster.deploy.core.job.loop import LaunchLoop
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.plan.spec import Program
from muster.deploy.features.why import diagnosis
from muster.deploy.features.why.diagnosis import Diagnosis, RankStacks
from muster.deploy.features.why.hang_verdict import HangVerdict
from tests.unit.attempts import attempt_of
from tests.unit.plans import NODE, make_plan
from tests.unit.test_execute import Hosts

PLAN = make_plan("node[1-2] slots=1")
DONE = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=None, ends={})
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "json.md").read_text()
MAKERS = {"_event", "_of_rank", "_end", "_note"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[JobEvent]:
    monkeypatch.setattr(state, "EARLIER_SECONDS", 0.0)
    return []


def execute(hosts: Hosts, history: JobHistory) -> None:
    history.began(hosts.plan)
    channels: Any = hosts.channels
    cluster: Any = Listener(hosts.events, channels)

    def emit(event: Event) -> None:
        if isinstance(event, Output):
            history.output(event)
        elif isinstance(event, JobEvent):
            history.add(event)

    result = LaunchLoop(attempt_of(hosts.plan, cluster, emit), Features()).run()
    history.ended(result)
    history.verdict(result)


def lines(told: list[JobEvent]) -> list[tuple[str, int | None]]:
    return [(event.type, event.rank) for event in told]


def test_a_failed_rank_is_told_with_its_code_and_ends_the_job(told: list[JobEvent]) -> None:
    hosts = Hosts(PLAN)
    hosts.start_all()
    hosts.start(0)  # a second start of a rank is no event
    hosts.tell("node1", "output", rank=0, stream="out", text="a\n")
    hosts.tell("node1", "output", rank=0, stream="out", text="b\n")
    hosts.end(1, code=-9)
    execute(hosts, JobHistory("j", told.append))
    # The driver takes output after what is more urgent.
    assert lines(told).count(("rank.printed", 0)) == 1
    told = [event for event in told if event.type != "rank.printed"]
    assert lines(told) == [
        ("attempt.started", None),
        ("rank.started", 0),
        ("rank.started", 1),
        ("rank.ended", 1),
        ("rank.failed", 1),
        ("rank.cut-off", 0),
        ("attempt.ended", 1),
        ("job.ended", 1),
    ]
    ended, cut_off, over = told[3], told[5], told[-1]
    assert (ended.code, ended.host, ended.printed) == (-9, "node2", None)
    assert cut_off.printed is not None
    assert (over.exit_status, over.state, over.text) == (137, "failed", "rank 1 on node2: SIGKILL (9)")


@pytest.mark.parametrize("kind", FAILURES)
def test_every_kind_of_failure_has_an_event_also_where_only_the_verdict_knows_it(kind: str) -> None:
    told: list[JobEvent] = []
    history = JobHistory("j", told.append)
    history.ended(dataclasses.replace(DONE, failure=Failure(kind, "why", 3, host="node2")))
    assert [event.type for event in told] == [FAILURES[kind], "attempt.ended"]
    assert told[0].text == "why"


def test_why_a_job_stood_still_is_an_event_after_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    why = HangVerdict("absent", "rank 0 waits in all_reduce #2", "rank 1 has not come", hang=True)
    found = RankStacks({}, {}), why
    monkeypatch.setattr(diagnosis, "gather_explanation", lambda *words: found)
    folder: Any = SimpleNamespace(keep=lambda name, text: None)
    attempt = dataclasses.replace(attempt_of(PLAN, emit=told.append), folder=folder)
    result = dataclasses.replace(DONE, failure=Failure("stall", "no sign", 3, event="job.stalled"))
    explained = Diagnosis().explain(attempt, result)
    events = [event for event in told if isinstance(event, JobEvent)]
    assert [event.type for event in events] == ["job.stalled", "job.explained"]
    assert explained.as_json()["why"]["cause"] == "rank 1 has not come"
    assert events[1].text == "rank 0 waits in all_reduce #2\nrank 1 has not come"
    assert explained.notes == ("muster check --bench measures every link and host",)  # it names no rank


def test_a_flood_of_failures_is_cut_and_no_failure_is_told_twice(told: list[JobEvent]) -> None:
    history = JobHistory("j", told.append)
    for rank in [0, 0, *range(1000)]:
        history.add(of_failure(Failure("placement", "x" * 10000, 1, "node1", rank), PLAN))
    assert [event.rank for event in told] == [*range(MOST_FAILURES)]
    assert all(len(event.line()) < 3000 for event in told)


def test_a_restart_is_told_with_its_hosts_and_the_end_once(told: list[JobEvent]) -> None:
    history = JobHistory("j", told.append)
    history.restarted("node2: gone; restart 1 of 1 on node1", ["node1"])
    history.verdict(DONE)
    history.verdict(DONE)
    assert [(event.type, event.hosts) for event in told] == [
        ("job.restarted", ("node1",)),
        ("job.ended", None),
    ]


def event_types() -> Iterator[str]:
    """The type of each event that the source makes."""
    yield from FAILURES.values()
    texts = [path.read_text() for path in (ROOT / "deploy").rglob("*.py")]
    for source in texts:
        if not re.search(r"""["'][a-z]+\.[a-z-]+["']""", source):
            continue
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call):
                values = [each.value for each in call.keywords if each.arg in {"type", "event"}]
                values += call.args[:1] if getattr(call.func, "attr", "") in MAKERS else []
                words = (str(value.value) for value in values if isinstance(value, ast.Constant))
                yield from (text for text in words if re.fullmatch(r"[a-z]+\.[a-z-]+", text))


def test_events_are_lines_of_json_with_the_fields_that_the_reference_lists(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.begin(PLAN)
    JobHistory("j", folder.on_event).began(PLAN)
    written = json.loads((folder.path / "events.jsonl").read_text())
    section = PAGE.partition("## events.jsonl\n")[2].partition("\n## ")[0]
    assert list(written) == re.findall(r"^\| `\{\}\.([^`]+)`", section, re.MULTILINE)
    assert {kind for kind in event_types() if f"`{kind}`" not in section} == set()
    assert written["hosts"] == ["node1", "node2"]
    assert written["ranks"] == 2


def test_a_full_disk_costs_the_events_not_the_job(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "j")
    folder.begin(PLAN)
    (folder.path / "events.jsonl").symlink_to("/dev/full")
    JobHistory("j", folder.on_event).began(PLAN)
    assert "no space left" in folder.problem


# -- the record of what was launched: everything that may make two runs differ, and nothing secret --


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--hf-token abc --lr 1", "--hf-token *** --lr 1"),
        ("--api_key=abc", "--api_key=***"),
        ("--password 'a b' x", "--password *** x"),
        ("--tokenizer gpt2 --max-tokens 5 --key 3 --author me", None),
    ],
)
def test_values_of_options_that_take_a_secret_are_hidden(line: str, shown: str | None) -> None:
    assert hidden_values(line) == (shown or line)


def test_a_long_line_of_a_host_does_not_hold_the_page_up() -> None:
    line = "-a" * 200_000  # minutes, if each dash were tried
    assert hidden_values(f"{line} --api-key x") == f"{line} --api-key ***"


def test_the_record_has_arguments_environment_versions_and_code_but_no_secret() -> None:
    spec: dict[str, Any] = {
        "program": Program(script="train.py", args=("--lr", "0.1", "--token", "s3cret", "--api-key=s3cret")),
        "env": (("LEVEL", "3"), ("HF_TOKEN", "s3cret"), ("PLAIN", "s3cret")),
        "hidden": ("PLAIN", "--tell"),
    }
    spec["command"] = ("muster", "launch", "--env", "HF_TOKEN=s3cret", "--env", "PLAIN", "--env", "LEVEL=3")
    spec["command"] += ("--tell", "curl -d @- chat.example/s3cret", "train.py", "--token", "s3cret")
    plan = make_plan("node[1-2] slots=2", **spec)
    record = launched(plan, {"node1": NODE})
    assert record["command"] == (
        "muster launch --env HF_TOKEN --env PLAIN --env LEVEL=3 --tell '***' train.py --token '***'"
    )
    assert "commit" not in record
    assert "s3cret" not in json.dumps(record)
    assert record["args"] == ["--lr", "0.1", "--token", "***", "--api-key=***"]
    assert record["env"] == {"LEVEL": "3", "HF_TOKEN": "***", "PLAIN": "***"}
    assert record["hosts"][0]["torch"] == "2.6.0"
    assert record["hosts"][1] == {"name": "node2", "ranks": [2, 3]}
    assert record["code"]["files"] == {"train/__main__.py": "ab" * 32}
