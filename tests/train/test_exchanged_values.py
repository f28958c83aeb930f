"""What ranks tell each other: JSON of an expected shape and size, whatever a rank sends."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from muster.train import TrainError
from muster.train.demo.config import TrainConfig
from muster.train.demo.main import train
from muster.train.job import values
from muster.train.job.group import Job
from tests.train.forked import on_hosts


@dataclass(frozen=True)
class Report:
    """A value with every kind of field."""

    step: int
    loss: float
    names: list[str]
    place: tuple[int, str]
    digest: str | None


REPORT = Report(3, 0.5, ["a", "b"], (1, "x"), None)


class Hostile:
    """Replaces pickle.Pickler: whoever unpickles what it writes makes a folder, named after its process."""

    folder = Path()

    def __init__(self, file: Any, *_: object, **__: object) -> None:
        self.file = file

    def dump(self, _: object) -> None:
        self.file.write(pickle.dumps(self))

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (f"__import__('os').mkdir('{self.folder}/' + str(__import__('os').getpid()))",)


def attack(group: Job, folder: Path) -> None:
    """Make rank 1 send hostile pickles wherever it pickles."""
    if group.rank == 1:
        Hostile.folder = folder
        vars(pickle)["Pickler"] = vars(c10d)["_pickler"] = Hostile


def test_a_hostile_pickle_runs_on_no_other_rank(tmp_path: Path) -> None:
    """Through a whole training: the start, its checkpoints, and a start from them."""
    run = tmp_path / "run"
    run.mkdir()
    words = ["--limit", "64", "--epochs", "1"]

    def trained(group: Job) -> None:
        attack(group, run)
        for epochs in ("1", "2"):
            out = ["--out", str(tmp_path / group.hosts[group.rank]), "--resume", "if-any"]
            train(TrainConfig.from_argv([*words, *out, "--epochs", epochs], {}), group)
        assert group.broadcast(7, int) == 7
        assert group.all_gather(group.rank, int) == [0, 1]

    on_hosts(tmp_path, 2, trained)
    assert list(run.iterdir()) == []


def test_torch_s_own_object_calls_run_what_another_rank_wrote(tmp_path: Path) -> None:
    """So the attack above is one. SECURITY.md says it of these calls in a user's program."""
    run = tmp_path / "run"
    run.mkdir()

    def gathered(group: Job) -> int:
        attack(group, run)
        dist.all_gather_object([None, None], group.rank)
        return os.getpid()

    victim, _ = on_hosts(tmp_path, 2, gathered)
    assert (run / str(victim)).is_dir()


@pytest.mark.parametrize("length", [0, 246, 247, 5000])
def test_a_value_of_any_length_arrives(tmp_path: Path, length: int) -> None:
    def exchanged(group: Job) -> list[list[str]]:
        mine = str(group.rank) * length
        return [group.all_gather(mine, str), [group.broadcast(mine, str)]]

    for got in on_hosts(tmp_path, 3, exchanged):
        texts = [str(rank) * length for rank in range(3)]
        assert got == [texts, texts[:1]]


def test_one_long_value_among_short_ones_arrives(tmp_path: Path) -> None:
    def exchanged(group: Job) -> list[list[int]]:
        return group.all_gather(list(range(1000 * group.rank)), list[int])

    for got in on_hosts(tmp_path, 2, exchanged):
        assert got == [[], [*range(1000)]]


def test_a_dataclass_arrives_as_one(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 2, lambda group: group.all_gather(REPORT, Report)) == [[REPORT, REPORT]] * 2


def said_by_all(folder: Path, what: Any) -> list[str]:
    """What each of two ranks raises in `what`."""

    def refused(group: Job) -> str:
        with pytest.raises(TrainError) as error:
            what(group)
        return str(error.value)

    return on_hosts(folder, 2, refused)


def test_a_rank_that_sends_another_shape_is_named_on_every_rank(tmp_path: Path) -> None:
    def send(group: Job) -> None:
        group.all_gather("one" if group.rank else 0, int)

    for said in said_by_all(tmp_path, send):
        assert said.startswith("no int from rank 1 (host1): expected int, got 'one'\n")


def test_a_size_is_refused_before_memory_is_spent_on_it(tmp_path: Path) -> None:
    def send(group: Job) -> None:
        if group.rank == 1:
            values._first = lambda sent, what: (1 << 50).to_bytes(values.SIZE, "big").ljust(values.FIRST)
        group.all_gather(0, int)

    for said in said_by_all(tmp_path, send):
        assert said == f"rank 1 (host1) sends a value of {1 << 50} bytes, where at most 1048576 are expected"


def test_rank_0_is_named_for_what_it_broadcasts(tmp_path: Path) -> None:
    for said in said_by_all(tmp_path, lambda group: group.broadcast([1, "x"], tuple[int, int])):
        assert said.startswith("no tuple[int, int] from rank 0 (host0): expected int, got 'x'\n")


@pytest.mark.parametrize("value", [{1, 2}, object(), Path("/"), b"bytes"])
def test_what_is_not_json_is_refused_where_it_is_passed(value: object) -> None:
    with pytest.raises(TrainError, match="ranks exchange JSON, and not"):
        values.encoded(value)


def test_a_value_that_is_too_large_is_refused_where_it_is_passed() -> None:
    with pytest.raises(TrainError, match="a value of 102 bytes as JSON: at most 101 travel"):
        values.encoded("x" * 100, at_most=101)


@pytest.mark.parametrize(
    "sent",
    [
        *(b"", b"[", b"\xff\xfe", b"{}", b"null", b"[" * 100_000, b"9" * 100_000, pickle.dumps(3)),
        *(b"true", b"3.0", b'"3"', b"[3]"),
    ],
)
def test_what_is_no_int_is_one_error(sent: bytes) -> None:
    with pytest.raises(TrainError, match=r"^no int from rank 5: .{0,200}\ndoes it run the same program"):
        values.decoded(sent, int, "rank 5")


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"step": True},
            {"loss": "0"},
            {"names": "ab"},
            {"names": [1]},
            {"place": [1]},
            {"place": {"0": 1}},
        ),
        *({"digest": 5}, {"more": 1}),
    ],
)
def test_a_dataclass_with_a_wrong_field_is_refused(change: dict[str, object]) -> None:
    sent = values.encoded({"step": 3, "loss": 1, "names": [], "place": [1, "x"], "digest": "d", **change})
    with pytest.raises(TrainError, match="no Report from rank 5: expected"):
        values.decoded(sent.encode(), Report, "rank 5")


def test_a_whole_number_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(TrainError, match="no float from rank 5: int too large"):
        values.decoded(b"9" * 400, float, "rank 5")


def test_a_whole_number_is_a_float_too() -> None:
    assert values.decoded(b"3", float, "rank 0") == 3.0
