"""Ranks of a wrong environment find out, all of them, what is wrong with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, Store, TCPStore

from muster.train.job.crosscheck import Identity, exchange, verify
from muster.train.job.failure import TrainError
from tests.load import hold

SHORT = timedelta(seconds=0.5)  # where not all come
LONG = timedelta(seconds=60)


def _card(rank: int, size: int, local_rank: int | None = None, **more: str | int) -> Identity:
    local_rank = rank if local_rank is None else local_rank
    card = {"host": "node1/boot", "pid": 100 + rank, "launcher": "env", **more}
    return Identity(rank, size, local_rank, **card)  # type: ignore[arg-type]


GOOD = [_card(0, 3), _card(1, 3), _card(2, 3, 0, host="node2/boot")]


@pytest.mark.parametrize(
    ("cards", "says"),
    [
        pytest.param([_card(0, 1), _card(0, 2)], "disagree on the world size", id="sizes"),
        pytest.param([_card(0, 2), _card(0, 2, 1)], "rank 0 exists more than once", id="a rank twice"),
        pytest.param([_card(0, 2), _card(1, 2, 0)], "local rank 0 exists more than once", id="local ranks"),
        pytest.param([_card(1, 2), _card(2, 2)], "not numbered from 0 to 1", id="no rank 0"),
        pytest.param([_card(0, 2, mpi_size=1), _card(1, 2, mpi_size=1)], "different MPIs", id="two MPIs"),
    ],
)
def test_ranks_that_are_no_job_are_named(cards: list[Identity], says: str) -> None:
    with pytest.raises(TrainError, match=says) as caught:
        verify(cards)
    assert f"process {cards[0].pid} on node1" in str(caught.value)


def test_the_ranks_of_one_job_pass_in_any_order() -> None:
    verify(GOOD)
    verify(list(reversed(GOOD)))


def test_virtual_local_ranks_are_told_apart_by_their_devices() -> None:
    verify([_card(0, 2, 0, devices="0"), _card(1, 2, 0, devices="1")])


def test_ranks_that_share_a_gpu_are_named_and_those_with_one_each_pass() -> None:
    verify([_card(0, 2, gpu="one"), _card(1, 2, gpu="two")])
    verify([_card(0, 2, gpu="one"), _card(1, 2, host="node2/boot", gpu="one")])
    cards = [_card(0, 3, gpu="one"), _card(1, 3, gpu="two"), _card(2, 3, gpu="one")]
    with pytest.raises(TrainError, match="these share one") as caught:
        verify(cards)
    told = str(caught.value).splitlines()
    assert [line.split(",")[0].strip() for line in told[1:-1]] == ["rank 0 of 3", "rank 2 of 3"]
    assert told[-1] == "start fewer ranks there, or use --backend gloo"


def test_a_job_of_many_shows_the_first_eight() -> None:
    with pytest.raises(TrainError) as caught:
        verify([_card(0, 100, number) for number in range(100)])
    assert len(str(caught.value).splitlines()) == 1 + 8 + 1 + 1
    assert "and 92 more" in str(caught.value)


Stores = Callable[[int], Store]


@pytest.fixture(params=["tcp", "file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Return `stores(rank)`, which opens the store as that rank would."""
    if request.param == "file":
        # Of one rank more than ever comes: the last to go would remove the file.
        return lambda rank: FileStore(str(tmp_path / "meet"), 5)
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    return lambda rank: TCPStore("127.0.0.1", server.port, None, False, use_libuv=False)


class _AtOnce:
    """A store where nobody begins to wait before all that come at all have laid down their cards."""

    def __init__(self, store: Store, all_here: threading.Barrier) -> None:
        self._store, self._all_here = store, all_here

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        if timeout:
            self._all_here.wait(60)
        self._store.wait(keys, *timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _meet(
    stores: Stores, cards: Sequence[Identity], timeout: timedelta = SHORT
) -> list[list[Identity] | str]:
    """Let each card come at once; returns what each got, cards or an error."""
    all_here = threading.Barrier(len(cards))

    def come(card: Identity) -> list[Identity] | str:
        try:
            return exchange(_AtOnce(stores(card.rank), all_here), card, timeout)  # type: ignore[arg-type]
        except TrainError as error:
            return str(error)

    with ThreadPoolExecutor(len(cards)) as pool:
        return list(pool.map(come, cards))


def test_each_rank_gets_the_cards_of_all(stores: Stores) -> None:
    for got in _meet(stores, GOOD, LONG):
        assert isinstance(got, list)
        assert sorted(card.rank for card in got) == [0, 1, 2]


@pytest.mark.timed
def test_the_ranks_that_came_name_each_other_when_one_does_not(stores: Stores) -> None:
    began = time.monotonic()
    for got in _meet(stores, GOOD[:2]):
        assert isinstance(got, str)
        assert got.startswith("2 of 3 ranks arrived within 0 s:")
        assert "rank 0 of 3" in got
        assert "rank 1 of 3" in got
    took = time.monotonic() - began
    hold("two of three ranks", took, 2.0, excludes=300.0)  # which is the time-out of torch's stores


def test_the_same_rank_twice_is_named_before_the_missing_one(stores: Stores) -> None:
    for got in _meet(stores, [_card(1, 3), _card(1, 3)]):
        assert isinstance(got, str)
        assert got.startswith("rank 1 exists more than once")


def test_one_rank_too_many_learns_that_the_place_is_taken(stores: Stores) -> None:
    _meet(stores, GOOD, LONG)
    (got,) = _meet(stores, [_card(0, 3)])
    assert isinstance(got, str)
    assert "is number 4 to arrive, of 3\nanother job uses the same rendezvous" in got
