"""A pushed data set as a rank reads it: its files, and batches out of a shard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.train.data.pushed import PushedData, folder
from muster.train.job.failure import TrainError
from muster.train.job.ranks import Ranks


def pushed(root: Path, shard: int, of: int, count: int = 11) -> dict[str, str]:
    """Lay out a set as a host has it; return the environment of its ranks."""
    version = root / ".sets" / "digits@0123"
    version.mkdir(parents=True)
    files = [{"path": f"{number:02d}", "size": 1} for number in range(count)]
    (root / ".sets" / "digits@0123.json").write_text(json.dumps({"shard": shard, "of": of, "files": files}))
    (root / "digits").symlink_to(".sets/digits@0123")
    return {"MUSTER_DATA": str(root)}


def ranks(rank: int, local: int = 2, hosts: int = 3) -> Ranks:
    return Ranks(rank, local * hosts, rank % local, local, "env")


def test_a_whole_set_is_divided_among_all_ranks(tmp_path: Path) -> None:
    data = PushedData("digits", pushed(tmp_path, 0, 1))
    taken = [
        index
        for rank in range(6)
        for batch in data.sampler(batch_size=11, ranks=ranks(rank))
        for index in batch
    ]
    assert sorted(taken) == list(range(11))
    assert data.files[0] == tmp_path / ".sets" / "digits@0123" / "00"


def test_shards_are_read_by_their_hosts_and_all_ranks_have_as_many_batches(tmp_path: Path) -> None:
    seen: list[str] = []
    batches = set()
    for host in range(3):
        data = PushedData("digits", pushed(tmp_path / str(host), host, 3))
        assert len(data.files) == (4, 4, 3)[host]
        for local in range(2):
            drawn = list(data.sampler(batch_size=6, ranks=ranks(2 * host + local), drop_last=True))
            batches.add(tuple(map(len, drawn)))
            seen += [data.files[index].name for batch in drawn for index in batch]
    assert batches == {(1,)}
    assert len(seen) == len({*seen}) == 6


@pytest.mark.parametrize(("batch_size", "hosts"), [(7, 3), (6, 2)])
def test_what_shards_cannot_divide_is_said(tmp_path: Path, batch_size: int, hosts: int) -> None:
    data = PushedData("digits", pushed(tmp_path, 0, 3))
    with pytest.raises(TrainError, match="cannot be divided"):
        data.sampler(batch_size=batch_size, ranks=ranks(0, hosts=hosts))


def test_a_set_that_is_not_here_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="muster data push FOLDER digits"):
        PushedData("digits", {"MUSTER_DATA": str(tmp_path)})


def test_a_name_is_a_folder_here_first_and_then_a_set(tmp_path: Path) -> None:
    environ = pushed(tmp_path, 0, 1)
    assert folder("digits", environ) == tmp_path / "digits"
    assert folder(str(tmp_path), environ) == tmp_path
    assert folder("digits", {}) == Path("digits")
