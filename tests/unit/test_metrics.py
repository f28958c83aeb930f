"""The metrics of a job on their way from its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.deploy.agent.job.supervisor import Work
from muster.deploy.connect.requests.launch import FETCH, FETCHED
from muster.deploy.connect.requests.request import Payload, Request
from muster.deploy.errors import MusterError
from muster.deploy.jobs import metrics
from muster.deploy.jobs.metrics import Metrics

FOLDER = "/home/ml/.muster/jobs/j"


class Head:
    """A head that gives the files that it has, as an agent does, and fails for others."""

    def __init__(self, host: str, **files: bytes) -> None:
        self.host = host
        self.files = {f"out/{name}.jsonl": content for name, content in files.items()}
        self.asked: list[tuple[str, float]] = []

    def ask(
        self, request: Request[Any], *, path: str, start: int, most: int, seconds: float = 30.0
    ) -> Payload:
        assert request is FETCH
        self.asked.append((path, seconds))
        if path not in self.files:
            raise MusterError("no answer", host=self.host)
        return Payload(self.files[path][start : start + most])


def fetched(*heads: Any) -> Metrics:
    """The metrics after an attempt on each of these heads."""
    found = Metrics(lambda name: None)
    for head in heads:
        found.fetch(head, FOLDER)
    return found


def test_a_file_that_could_not_be_fetched_is_named_with_its_place() -> None:
    found = fetched(Head("node1", metrics=b'{"epoch": 1}\n'))
    assert found.texts == {"metrics.jsonl": '{"epoch": 1}\n'}
    assert found.missing() == [
        f"steps.jsonl could not be fetched; if the program wrote it, it is in {FOLDER}/out on node1"
    ]


def test_files_of_which_nothing_came_are_named_with_their_place() -> None:
    found = fetched(Head("node1"))
    assert found.texts == {}
    assert found.missing() == [
        f"metrics.jsonl and steps.jsonl could not be fetched; if the program wrote them, they are in "
        f"{FOLDER}/out on node1"
    ]


def test_a_file_that_lacks_the_part_of_an_earlier_head_says_where_that_is() -> None:
    found = fetched(Head("node1", steps=b""), Head("node2", metrics=b'{"epoch": 2}\n', steps=b""))
    assert found.missing() == [
        f"metrics.jsonl lacks what could not be fetched; it is in {FOLDER}/out on node1"
    ]


def test_what_the_same_head_gives_later_is_missing_no_more() -> None:
    assert fetched(Head("node1"), Head("node1", metrics=b"", steps=b"")).missing() == []


def test_an_agent_gives_any_part_of_a_file(tmp_path: Path) -> None:
    work = Work(tmp_path, lambda frame: None)
    work.job = {"folder": str(tmp_path)}
    (tmp_path / "metrics.jsonl").write_bytes(b"0123456789")
    asked = {"path": "metrics.jsonl", "start": 4, "most": 3}
    assert work.do_fetch(asked, b"") == {"payload": b"456"}
    assert work.do_fetch({**asked, "start": 10}, b"") == {"payload": b""}
    assert work.do_fetch({**asked, "path": "steps.jsonl"}, b"") == {}


@pytest.mark.parametrize("size", [0, 1, FETCHED, 2 * FETCHED + 7])
def test_a_file_comes_whole_in_parts_that_a_slow_link_brings_in_time(size: int) -> None:
    content = b"x" * size
    head = Head("node1", metrics=content, steps=b"")
    assert fetched(head).texts.get("metrics.jsonl", "").encode() == content
    assert len(head.asked) == size // FETCHED + 2


def test_no_host_holds_the_end_of_a_job_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS_SECONDS", 0.0)
    head = Head("node1", metrics=b"", steps=b"")
    fetched(head)
    assert head.asked and all(seconds <= 0 for _, seconds in head.asked)
