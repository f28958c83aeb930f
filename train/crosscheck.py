"""Whether the ranks that meet are one job: each says who it is, and each judges what all have said.

An environment can be whole and wrong: an `mpirun` of another MPI than mpi4py's makes every rank the first of
one, two jobs are given the same meeting point, a shell script sets the same RANK twice. Without this check
the ranks would wait for each other until the time-out, without a word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta

from torch.distributed import Store

from .errors import TrainError


@dataclass(frozen=True, slots=True)
class Card:
    """What a rank says of itself. `host` is the machine's, `devices` what CUDA_VISIBLE_DEVICES leaves it."""

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    launcher: str
    devices: str | None = field(default=None)
    mpi_size: int | None = field(default=None)

    def __str__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}, local rank {self.local_rank}"
        return f"{place} ({self.launcher}, process {self.pid} on {self.host.partition('/')[0]})"


def exchange(store: Store, card: Card, timeout: timedelta) -> list[Card]:
    """Lay down `card` and return the cards of all, in the order in which they came.

    Numbered by arrival, not by rank: two processes with the same rank both come, and both find out. Raises
    TrainError if some do not come within `timeout`, or if more came than there should be.
    """
    mine = store.add("muster/arrived", 1)
    store.set(f"muster/card/{mine}", json.dumps(asdict(card)))
    if mine > card.world_size:
        raise TrainError(
            f"{card} is number {mine} to arrive, of {card.world_size}\n"
            "another job meets at the same place, or an earlier one has left its file there: choose another"
        )
    keys = [f"muster/card/{number}" for number in range(1, card.world_size + 1)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:  # DistStoreError of a TCPStore is one, a FileStore raises it bare
        raise TrainError(_who_came(store, keys, card, timeout)) from error
    cards = [Card(**json.loads(store.get(key))) for key in keys]
    _leave_together(store, card)
    return cards


def _who_came(store: Store, keys: Sequence[str], card: Card, timeout: timedelta) -> str:
    came = [Card(**json.loads(store.get(key))) for key in keys if store.check([key])]
    lines = [f"{len(came)} of {card.world_size} ranks came within {timeout.total_seconds():.0f} s:"]
    lines += [f"  {one}" for one in came]
    try:
        verify(came, of_all=False)
    except TrainError as wrong:
        return f"{wrong}\n" + "\n".join(lines)
    return "\n".join([*lines, "were the others started, and do they reach the same address?"])


def _leave_together(store: Store, card: Card) -> None:
    """Let rank 0, whose process may hold the store, stay until the others have read theirs."""
    read = store.add("muster/read", 1)
    if read == card.world_size:
        store.set("muster/all-read", "1")
    store.wait(["muster/all-read"])


def verify(cards: Sequence[Card], *, of_all: bool = True) -> None:
    """Raise TrainError, the same on every rank, if these are not the ranks of one job, each in its place."""
    sizes = Counter(card.world_size for card in cards)
    if len(sizes) > 1:
        _refuse("the ranks disagree on how many they are", cards)
    places = Counter((card.host, card.local_rank, card.devices) for card in cards)
    ranks = Counter(card.rank for card in cards)
    if twice := [card for card in cards if ranks[card.rank] > 1]:
        _refuse(f"rank {twice[0].rank} is there more than once", twice)
    if of_all and sorted(ranks) != list(range(len(cards))):
        _refuse(f"the ranks are not numbered from 0 to {len(cards) - 1}", cards)
    if twice := [card for card in cards if places[card.host, card.local_rank, card.devices] > 1]:
        _refuse(f"local rank {twice[0].local_rank} is there more than once on a host", twice)
    if wrong := [card for card in cards if card.mpi_size not in {None, card.world_size}]:
        _refuse(
            f"to MPI the job has {wrong[0].mpi_size} ranks, not {wrong[0].world_size}: "
            "mpirun and the MPI library are of different MPIs, or mpirun did not start these",
            wrong,
        )


def _refuse(what: str, cards: Sequence[Card]) -> None:
    shown = sorted(cards, key=lambda card: (card.rank, card.pid))[:8]
    lines = [f"{what}:", *(f"  {card}" for card in shown)]
    lines += [f"  and {len(cards) - len(shown)} more"] if len(cards) > len(shown) else []
    raise TrainError("\n".join([*lines, "start all ranks with one launcher, and see --launcher"]))
