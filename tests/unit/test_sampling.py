"""Samples in the driver: a host that lies or floods costs its samples, and never the job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect.reports import of_frame
from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample, as_line, of_json, of_line
from muster.deploy.core.job.events import Event, JobEvent, Recorded, Reported
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.features.samples import driver
from muster.deploy.features.samples import driver as sampling
from muster.deploy.features.samples.driver import Sampled, SampleFile, Sampling
from muster.deploy.features.why.messages import Straggler
from muster.deploy.features.why.pace_watch import PaceWatch
from tests.samples import read_samples
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


def test_the_verdict_notes_a_host_that_floods_and_no_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- samples as plain values: what a host sends is checked, and what was not measured stays None --


FULL: dict[str, Any] = {
    "at": 1763800000.0,
    "host": "node1",
    "attempt": 1,
    "cpus": 2,
    "load": 1.2,
    "cpu": 0.83,
    "memory": 1 << 30,
    "memory_total": 1 << 31,
    "swap": 0,
    "net_in": 10.0,
    "net_out": 20.0,
    "disk_read": 0.0,
    "disk_write": 5.5,
    "shm": 4096,
    "shm_total": 1 << 20,
    "temperature": 61.0,
    "gpus": [
        {"index": 0, "name": "H100", "utilisation": 0.5, "memory": 1, "memory_total": 2, "power": 300.0}
    ],
    "ranks": [{"rank": 3, "cpu": 0.9, "memory": 7, "threads": 5, "state": "R", "read": 0.0, "written": 1.0}],
    "training": {"step": 12, "loss": 0.25, "step_seconds": 0.1},
}


def test_a_sample_survives_its_line() -> None:
    sample = of_json(FULL)
    assert of_line(as_line(sample)) == sample
    assert json.loads(as_line(sample)) == FULL
    assert sample.ranks == (RankSample(3, 0.9, 7, 5, "R", 0.0, 1.0),)


def test_a_sample_needs_its_time_and_its_host_alone() -> None:
    assert of_json({"at": 1, "host": "a"}) == HostSample(1.0, "a")
    assert of_json({"at": 1, "host": "a", "temperature": None, "gpus": None}) == HostSample(1.0, "a")


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert of_json({"at": 1, "host": "a", "fans": [1, 2]}) == HostSample(1.0, "a")


def test_what_was_not_measured_is_not_written() -> None:
    line = as_line(HostSample(1.0, "a", gpus=(GpuSample(0),)))
    assert json.loads(line) == {"at": 1.0, "host": "a", "attempt": 0, "gpus": [{"index": 0}]}


CPUS: tuple[Any, ...] = (1.5, -0.1, True, "1", float("nan"), 10**400, [])


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, [], "sample", {}, {"at": 1}, {"host": "a"}, {**FULL, "at": "now"}, {**FULL, "host": 3}),
        *({**FULL, "cpu": value} for value in CPUS),
        *({**FULL, "memory": value} for value in (-1, 1.5, 1 << 61)),
        *({**FULL, "host": "a" * 257}, {**FULL, "gpus": {}}, {**FULL, "gpus": [{}]}),
        *({**FULL, "ranks": [{"rank": -1}]}, {**FULL, "ranks": [{"rank": 0}] * 5000}, {**FULL, "ranks": [3]}),
        {**FULL, "training": {"loss": 1.0}},
    ],
    ids=str,
)
def test_a_malformed_sample_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|without"):
        of_json(wrong)


@pytest.mark.parametrize("line", ["", "{", "[" * 100_000, "\x00", '{"at": 1, "host":'])
def test_a_line_that_is_cut_or_damaged_is_no_sample(line: str) -> None:
    with pytest.raises(ValueError):
        of_line(line)


# -- the file of a run's samples: whole, cut, damaged, begun in the middle, full --


def sample(number: int, host: str = "node1") -> HostSample:
    return HostSample(float(number), host, load=number / 7, ranks=(RankSample(number, cpu=number * 1.37),))


def write(path: Path, numbers: range, hosts: int = 1) -> list[HostSample]:
    file = SampleFile(str(path), hosts)
    written = [sample(number) for number in numbers]
    for each in written:
        file.add(each)
    file.close()
    return written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def test_what_is_written_is_read_again_also_by_other_programs(path: Path) -> None:
    written = write(path, range(500))
    assert [*read_samples(str(path))] == written
    with path.open() as lines:
        assert [of_line(line) for line in lines] == written


def test_a_line_can_be_read_as_soon_as_it_is_written(path: Path) -> None:
    file = SampleFile(str(path), 1)
    for number in range(3):
        file.add(sample(number))
        assert len([*read_samples(str(path))]) == number + 1
    file.close()


def test_a_file_may_be_closed_again(path: Path) -> None:
    """A Ctrl-C while a run ends makes its end begin again."""
    file = SampleFile(str(path), 1)
    file.add(sample(1))
    file.close()
    whole = path.read_bytes()
    file.close()
    assert path.read_bytes() == whole
    assert whole.count(b"\n") == 1


def test_a_file_that_is_cut_is_read_up_to_the_cut(path: Path) -> None:
    written = write(path, range(60))
    content = path.read_bytes()
    seen = []
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        read = [*read_samples(str(path))]
        assert read == written[: len(read)]
        seen.append(len(read))
    assert seen == sorted(seen) and seen[-1] > 50


def test_damage_costs_the_samples_around_it_alone(path: Path) -> None:
    written = write(path, range(500))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    read = [*read_samples(str(path))]
    assert {*read} <= {*written} and len(read) > 490
    assert (read[0], read[-1]) == (written[0], written[-1])


def test_an_attempt_after_the_end_of_a_driver_goes_on_in_the_same_file(path: Path) -> None:
    written = [*write(path, range(5)), *write(path, range(5, 9))]
    assert [*read_samples(str(path))] == written


def test_a_full_share_takes_no_room_of_another_host(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_FILE", 20_000)
    file = SampleFile(str(path), hosts=2)
    for number in range(5000):
        file.add(sample(number, "loud"))
    for number in range(20):
        file.add(sample(number, "quiet"))
    file.close()
    read = [*read_samples(str(path))]
    assert path.stat().st_size < 20_000
    assert [entry.at for entry in read if entry.host == "quiet"] == [float(number) for number in range(20)]
    loud = [entry.at for entry in read if entry.host == "loud"]
    assert loud[-1] > 2500 and 50 < len(loud) < 1000


def test_a_disk_that_is_full_ends_the_file_and_raises_nothing() -> None:
    file = SampleFile("/dev/full", 1)
    file.add(sample(1))
    file.add(sample(2))
    file.close()
    assert file.problem
