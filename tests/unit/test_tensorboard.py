"""The records of a run for TensorBoard: which numbers, at which step, in which file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from muster.deploy.errors import UsageError
from muster.deploy.view import tensorboard
from muster.deploy.view.page.records import read
from muster.deploy.view.tensorboard import Scalar, scalars, write_tensorboard
from tests.unit.runs import BEGAN, JOB, write_run


@dataclass
class Value:
    tag: str
    simple_value: float


@dataclass
class Summary:
    value: list[Value]
    Value: ClassVar[type[Value]] = Value


@dataclass
class Event:
    wall_time: float
    step: int
    summary: Summary


@dataclass
class Writer:
    """As tensorboard's EventFileWriter, but it keeps what it gets."""

    folder: str
    made: ClassVar[list[Writer]] = []
    events: list[Event] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.made.append(self)

    def add_event(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """A package tensorboard that writes nothing."""
    names: dict[str, dict[str, Any]] = {
        "tensorboard.compat.proto.event_pb2": {"Event": Event},
        "tensorboard.compat.proto.summary_pb2": {"Summary": Summary},
        "tensorboard.summary.writer.event_file_writer": {"EventFileWriter": Writer},
    }
    for name, members in names.items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:length]), ModuleType(parts[length - 1]))
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


def add_line(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_steps_epochs_and_samples_are_curves_with_their_steps_and_times(tmp_path: Path) -> None:
    folder = write_run(tmp_path, seconds=10)
    found = set(scalars(read(folder)))
    assert Scalar("", "step/lr", 300, 0.0, 0.1) in found
    assert Scalar("", "metrics/accuracy", 8, 0.0, 1 - 1 / 9) in found
    assert Scalar("node2", "host/memory_total", 4, BEGAN + 4, float(16 << 30)) in found
    tags = {scalar.tag for scalar in found}
    assert not tags & {
        "host/at",
        "host/attempt",
        "step/step",
        "step/gradient_norm",
    }


def test_gpus_and_ranks_have_curves_of_their_own_and_a_rank_of_steps_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path, seconds=10)
    (folder / "samples.jsonl.gz").unlink()
    (folder / "steps.jsonl").unlink()
    add_line(folder / "steps.jsonl", {"step": 7, "rank": 3, "loss": 2.0, "time": BEGAN})
    records = read(folder)
    sample = {"at": BEGAN, "host": "n", "gpus": [{"index": 1, "power": 300.0, "name": "H100"}, "garbage"]}
    sample |= {"ranks": [{"rank": 12, "cpu": 1.5}, {"cpu": 9.0}], "training": {"step": 3, "time": BEGAN}}
    found = [*scalars(type(records)(**{**vars(records), "samples": (sample,), "metrics": ()}))]
    assert found == [
        Scalar("rank-0003", "step/loss", 7, BEGAN, 2.0),
        Scalar("n", "gpu1/power", 0, BEGAN, 300.0),
        Scalar("n", "rank-12/cpu", 0, BEGAN, 1.5),
        Scalar("n", "training/step", 0, BEGAN, 3.0),
    ]


def test_each_host_is_a_folder_of_the_run_and_earlier_files_of_it_go(
    tmp_path: Path, writers: list[Writer]
) -> None:
    old = tmp_path / "boards" / JOB / "node1" / "events.out.tfevents.1.desk"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier report")
    line = write_tensorboard(read(write_run(tmp_path, seconds=10)), tmp_path / "boards")
    place = tmp_path / "boards" / JOB
    assert {writer.folder for writer in writers} == {str(place), f"{place}/node1", f"{place}/node2"}
    assert all(writer.closed and writer.events for writer in writers)
    assert not old.exists()
    assert line == f"{place}: for tensorboard --logdir {tmp_path / 'boards'}"


def test_a_host_cannot_choose_another_folder(tmp_path: Path, writers: list[Writer]) -> None:
    records = read(write_run(tmp_path, seconds=10))
    samples = tuple({"at": 1.0, "host": name, "load": 1.0} for name in ("../../x", "..", "/etc"))
    write_tensorboard(type(records)(**{**vars(records), "samples": samples}), tmp_path / "boards")
    for writer in writers:
        assert Path(writer.folder).resolve().is_relative_to(tmp_path / "boards" / JOB)


def test_of_very_many_hosts_it_says_how_many_are_missing(
    tmp_path: Path, writers: list[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "MOST_RUNS", 3)
    line = write_tensorboard(read(write_run(tmp_path, hosts=5, seconds=10)), tmp_path / "boards")
    assert len(writers) == 3 and line.endswith(", without 3 more hosts")


def test_a_run_without_a_number_says_so(tmp_path: Path, writers: list[Writer]) -> None:
    (tmp_path / "job").mkdir()
    assert write_tensorboard(read(tmp_path / "job"), tmp_path / "boards") == "job has no numbers"
    assert writers == []


def test_without_the_package_there_is_a_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        write_tensorboard(read(write_run(tmp_path, seconds=10)), tmp_path / "boards")
    assert not (tmp_path / "boards").exists()
