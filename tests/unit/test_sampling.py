"""Samples in the driver: a host that lies or floods costs its samples, and never the job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.reports import of_frame
from muster.deploy.core.hosts.host_sample import HostSample
from muster.deploy.core.job.events import Event, JobEvent, Recorded, Reported
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.features.samples import driver as sampling
from muster.deploy.features.samples.driver import Sampled, Sampling
from muster.deploy.features.why.messages import Straggler
from muster.deploy.features.why.pace_watch import PaceWatch
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan
from tests.unit.test_execute import FakeChannel
from tests.unit.test_feature import DONE

PLAN = make_plan("node[1-2] slots=2")
MALFORMED: tuple[Any, ...] = (
    *(None, [], "x", {"cpu": 7}, {"load": "high"}),
    *({"ranks": [{"rank": "0"}]}, {"gpus": [{}]}),
)


class Kept:
    """A driver that takes in samples, at a time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[HostSample] = []
        self.time = 1000.0
        self.channels = {name: FakeChannel() for name in ("node1", "node2")}
        cluster: Any = SimpleNamespace(channels=self.channels)
        self._sampling, self._attempt = Sampling(), attempt_of(PLAN, cluster, self._take)
        self._sampling.begins(self._attempt)
        for _ in range(2):
            self._sampling.turn(self._attempt)
        monkeypatch.setattr(sampling, "now", lambda: self.time)

    def _take(self, event: Event) -> None:
        assert isinstance(event, HostSample)
        self.samples.append(event)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._sampling.ended(self._attempt, DONE).notes

    def hear(self, host: str, sample: Any) -> None:
        report = of_frame({"event": "sample", "sample": json.dumps(sample)})
        assert isinstance(report, Sampled)
        self._sampling.on_event(Reported(host, report))


@pytest.mark.parametrize("malformed", MALFORMED, ids=str)
def test_malformed_costs_a_host_its_sample_alone(monkeypatch: pytest.MonkeyPatch, malformed: Any) -> None:
    kept = Kept(monkeypatch)
    kept.hear("node1", malformed)
    kept.hear("node2", {"cpu": 0.5})
    assert kept.samples == [HostSample(1000.0, "node2", cpu=0.5)]


def test_the_verdict_notes_a_host_whose_samples_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    for malformed in MALFORMED[:3]:
        kept.hear("node1", malformed)
    kept.hear("node2", {"cpu": 0.5})
    assert kept.notes == ("node1: 3 malformed samples dropped",)


def test_the_verdict_notes_a_host_that_floods_and_none_whose_samples_come_late_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    for _ in range(10_001):
        kept.hear("node1", {"cpu": 0.5})
    for _ in range(15):
        kept.hear("node2", {"cpu": 0.5})
    assert len(kept.samples) == 2
    assert kept.notes == ("node1: 10000 samples more than requested; dropped",)


def test_no_sample_ends_a_connection() -> None:
    assert of_frame({"event": "sample"}) == Sampled(None)
    for sample in (None, 3, {"cpu": 0.5}, "", "[" * 100_000, "null", '{"cpu": NaN}', '{"cpu": 1e999}'):
        assert of_frame({"event": "sample", "sample": sample}) == Sampled(None)


def test_a_host_cannot_speak_for_another_nor_for_ranks_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    ranks = [{"rank": number} for number in (0, 2, 3, 3, 77)]
    kept.hear("node2", {"host": "node1", "at": 1.0, "attempt": 9, "ranks": ranks})
    (sample,) = kept.samples
    assert (sample.host, sample.at, sample.attempt) == ("node2", 1000.0, 0)
    assert [entry.rank for entry in sample.ranks] == [2, 3]


def test_a_host_that_floods_is_heard_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    for _ in range(100):
        kept.hear("node1", {})
        kept.time += 0.01
    assert [sample.at for sample in kept.samples] == pytest.approx([1000.0, 1000.5])


def test_every_host_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [("watch", {"every": 2.0})]
    assert [channel.asked for channel in Kept(monkeypatch).channels.values()] == [asked, asked]


def test_a_disk_that_is_full_for_samples_is_a_note_and_no_failure(tmp_path: Path) -> None:
    folder, feature = RunFolder(tmp_path, "job"), Sampling()
    folder.path.mkdir()
    (folder.path / "samples.jsonl").symlink_to("/dev/full")
    feature.begins(attempt_of(PLAN, folder=folder))
    feature.on_event(HostSample(1.0, "node1"))
    assert feature.over(DONE).notes == ("here: samples.jsonl ends early: No space left on device",)


def test_a_disk_that_is_full_for_events_is_a_note_and_no_failure(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "job")
    folder.begin(PLAN)
    (folder.path / "events.jsonl").symlink_to("/dev/full")
    for _ in range(2):
        folder.on_event(JobEvent(at=1.0, type="rank.started", job="job", attempt=0))
    assert folder.problem.startswith("here: no space left on the disk of ")
    assert "the hosts have all logs" in folder.problem


def test_a_late_rank_is_named_again_when_its_figures_change() -> None:
    events, watch = list[Event](), PaceWatch()
    watch.begins(attempt_of(PLAN, emit=events.append))

    def named(*late: Straggler) -> list[Any]:
        """What the record names after a look that finds these ranks; empty if it stays as it is."""
        events.clear()
        watch._name(late)
        return [json.loads(event.value) for event in events if isinstance(event, Recorded)]

    late = Straggler(1, "node1", 0.1, 1.0, 0.9, 20, True, "all_reduce", 1.0)
    looks = [
        late,
        late,
        replace(late, late=0.105),
        replace(late, late=0.2),
        replace(late, late=0.2, cause="heat"),
    ]
    assert named() == []
    assert [bool(named(look)) for look in looks] == [True, False, False, True, True]
    assert named(late, late) == [[late.as_json()] * 2]
    assert named() == [[]]
