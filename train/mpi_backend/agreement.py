"""Checks that all ranks call the same collective, before each one, under TORCH_DISTRIBUTED_DEBUG=DETAIL.

torch's own check does not apply to process groups in Python. Without a check, ranks whose tensors differ in
size get an error of MPI's, get wrong numbers, or wait until the time-out.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import zip_longest

from .exceptions import MismatchError
from .library import MPI

_DIGEST = 16  # bytes
_SIZE = 4  # bytes that have the size of a description
_LONGEST = 1 << 16  # bytes of a description that travel
_SHOWN = 300  # characters of a description in the error


def check(comm: MPI.Intracomm, description: str) -> None:
    """Raise MismatchError on every rank, with every rank's description, unless all are equal."""
    digest = blake2b(description.encode(), digest_size=_DIGEST).digest()
    digests = bytearray(_DIGEST * comm.size)
    comm.Allgather(digest, digests)
    if digests == digest * comm.size:
        return
    descriptions = _exchanged(comm, description)
    places = (at for at, letters in enumerate(zip_longest(*descriptions)) if len(set(letters)) > 1)
    same = next(places, len(descriptions[0]))  # the difference may lie behind what travels
    each = (f"rank {rank}: {_excerpt(text, same)}" for rank, text in enumerate(descriptions))
    raise MismatchError("the ranks differ: " + "; ".join(each))


def _exchanged(comm: MPI.Intracomm, description: str) -> list[str]:
    """Return every rank's description, up to a length. As bytes: mpi4py's `allgather` would unpickle them."""
    text = description.encode()[:_LONGEST]
    sizes = bytearray(_SIZE * comm.size)
    comm.Allgather(len(text).to_bytes(_SIZE, "big"), sizes)
    each = [int.from_bytes(sizes[at : at + _SIZE], "big") for at in range(0, len(sizes), _SIZE)]
    longest = min(max(each), _LONGEST)
    texts = bytearray(longest * comm.size)
    comm.Allgather(text.ljust(longest), texts)
    rows = (texts[at : at + longest] for at in range(0, len(texts), longest))
    return [row[:size].decode(errors="replace") for row, size in zip(rows, each, strict=True)]


def _excerpt(text: str, same: int) -> str:
    """Return `text`; where it is long, its beginning and what surrounds the first difference, at `same`."""
    if len(text) <= _SHOWN:
        return text
    start, end = max(40, same - _SHOWN // 4), same + _SHOWN // 2
    return f"{text[:40]} ... {text[start:end]}" + (" ..." if end < len(text) else "")
