"""Compares which collectives the ranks have called: MPI joins unlike ones too, and their results are wrong.

A rank notes each collective as a number: its operation, reduction, root and size. After every 512 of them,
and when they leave the group, the ranks exchange a checksum of what they noted, without waiting for each
other. To compare each collective would take longer than a small collective itself; that is only done under
TORCH_DISTRIBUTED_DEBUG=DETAIL, because torch's own check does not apply to process groups in Python.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter, deque
from hashlib import blake2b
from itertools import zip_longest
from typing import NamedTuple

from .exceptions import MismatchError, TimedOutError
from .library import MPI, complete, in_use
from .reduction import FIRST_BIT, reduction_named
from .work_queue import EVERY

NAMES = (
    *("broadcast", "all_reduce", "sparse_all_reduce", "reduce", "all_gather", "all_gather_into_tensor"),
    *("gather", "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "barrier"),
)
FROM_ROOT = {"broadcast", "scatter"}
ROOTED = {*FROM_ROOT, "reduce", "gather"}
REDUCING = {"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"}
# A note is a number of 64 bits: name, reduction, root and, in the lowest bits, size.
_NAME, _ROOT = 58, 28
_REDUCTION = (1 << _NAME) - (1 << FIRST_BIT)
_SIZE = (1 << _ROOT) - 1
_NOTHING = 2**64 - 1
ANSWER = 5.0  # seconds in which the ranks that are still there say what they called
_FIELDS = 3  # of a message: how many collectives, their checksum, whether the rank leaves
OF_NAME = {name: number << _NAME for number, name in enumerate(NAMES)}


def note(name: str, size: int, root: int = 0, reduction: int = 0) -> int:
    """Return a collective as a number; `size` in bytes is 0 where ranks may differ in it."""
    return OF_NAME[name] | reduction | (root & 0xFFFF) << _ROOT | size & _SIZE


class _Sent(NamedTuple):
    """A comparison under way; `notes` are those since the one before."""

    request: MPI.Request
    mine: array[int]
    everyone: array[int]
    notes: tuple[int, ...]
    first: int


class Order:
    """What this rank has called in a group; `comm` carries no other collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.notes: list[int] = []
        """The collectives since the last comparison, in the order in which the ranks run them."""
        self.verdict = ""
        """Which rank left the order of the others, and where."""
        self._comm = comm
        self._first = 1  # the number of the first of the notes
        self._sent: deque[_Sent] = deque()
        in_use.append(self._sent)  # a rank may leave the group before another one compares
        self._lock = threading.Lock()

    def compare(self, *, leaving: bool = False) -> None:
        """Send a checksum of the notes to the other ranks, and begin new ones."""
        with self._lock:
            notes, first = tuple(self.notes), self._first
            self.notes.clear()
            self._first += len(notes)
            mine = array("q", (self._first - 1, hash(notes), leaving))  # equal integers, equal hash
            everyone = array("q", bytes(8 * _FIELDS * self._comm.size))
            request = self._comm.Iallgather([mine, MPI.INT64_T], [everyone, MPI.INT64_T])
            self._sent.append(_Sent(request, mine, everyone, notes, first))

    def settled(self) -> bool:
        """Read what has arrived; returns whether every comparison that this rank began is done."""
        with self._lock:
            while self._sent and not self.verdict and self._sent[0].request.Test():
                sent = self._sent.popleft()
                if sent.everyone != sent.mine * self._comm.size:
                    self.verdict = self._difference(sent)
            return not self._sent

    def _difference(self, sent: _Sent) -> str:
        """Exchange what was noted: every rank has found the same, and comes here unless it has left."""
        size = self._comm.size
        mine = array("Q", sent.notes + (_NOTHING,) * (EVERY - len(sent.notes)))
        every = array("Q", bytes(8 * EVERY * size))
        try:
            complete(self._comm.Iallgather([mine, MPI.UINT64_T], [every, MPI.UINT64_T]), ANSWER, "")
        except TimedOutError:
            return (
                f"the ranks called unlike collectives between number {sent.first} and {sent.mine[0]}, and "
                "what they gave since then is wrong. A rank has left, so it cannot be said which"
            )
        rows = [every[rank * EVERY : (rank + 1) * EVERY] for rank in range(size)]
        for number, calls in enumerate(zip(*rows, strict=True), start=sent.first):
            usual, _ = Counter(calls).most_common(1)[0]
            if others := [rank for rank, call in enumerate(calls) if call != usual]:
                return (
                    f"rank {others[0]} left the order of the others at number {number}: it called "
                    f"{_text(calls[others[0]])}, and rank {calls.index(usual)} {_text(usual)}. "
                    "MPI joined unlike collectives, and what they gave since then is wrong"
                )
        return "a rank has left the group, and others go on"


def _text(call: int) -> str:
    if call == _NOTHING:
        return "nothing more"
    name, root, size = NAMES[call >> _NAME], call >> _ROOT & 0xFFFF, call & _SIZE
    words = [name, reduction_named(call & _REDUCTION) if name in REDUCING else ""]
    words += [f"from rank {root}" if name in FROM_ROOT else f"to rank {root}"] if name in ROOTED else []
    words += [f"of {size} bytes"] if size else []
    return " ".join(filter(None, words))


_DIGEST = 16  # bytes
_LONGEST = 1 << 16  # bytes of a description that travel
_SHOWN = 300  # characters of a description in the error


def check_agreement(comm: MPI.Intracomm, description: str) -> None:
    """Raise MismatchError on every rank, with every rank's description, unless all are equal."""
    digest = blake2b(description.encode(), digest_size=_DIGEST).digest()
    digests = bytearray(_DIGEST * comm.size)
    comm.Allgather(digest, digests)
    if digests == digest * comm.size:
        return
    texts = bytearray(_LONGEST * comm.size)  # as bytes: mpi4py's `allgather` would unpickle them
    comm.Allgather(description.encode()[:_LONGEST].ljust(_LONGEST), texts)
    rows = (texts[at : at + _LONGEST] for at in range(0, len(texts), _LONGEST))
    descriptions = [row.decode(errors="replace").rstrip() for row in rows]
    places = (at for at, letters in enumerate(zip_longest(*descriptions)) if len(set(letters)) > 1)
    same = next(places, len(descriptions[0]))  # the difference may lie behind what travels
    each = (f"rank {rank}: {_excerpt(text, same)}" for rank, text in enumerate(descriptions))
    raise MismatchError("the ranks differ: " + "; ".join(each))


def _excerpt(text: str, same: int) -> str:
    """Return `text`; where it is long, its beginning and what surrounds the first difference, at `same`."""
    if len(text) <= _SHOWN:
        return text
    start, end = max(40, same - _SHOWN // 4), same + _SHOWN // 2
    return f"{text[:40]} ... {text[start:end]}" + (" ..." if end < len(text) else "")
