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
_SHOWN = 300  # characters of a description in the error


def check(comm: MPI.Intracomm, description: str) -> None:
    """Raise MismatchError on every rank, with every rank's description, unless all are equal."""
    digest = blake2b(description.encode(), digest_size=_DIGEST).digest()
    digests = bytearray(_DIGEST * comm.size)
    comm.Allgather(digest, digests)
    if digests == digest * comm.size:
        return
    descriptions = comm.allgather(description)
    same = next(at for at, letters in enumerate(zip_longest(*descriptions)) if len(set(letters)) > 1)
    each = (f"rank {rank}: {_excerpt(text, same)}" for rank, text in enumerate(descriptions))
    raise MismatchError("the ranks differ: " + "; ".join(each))


def _excerpt(text: str, same: int) -> str:
    """Return `text`; where it is long, its beginning and what surrounds the first difference, at `same`."""
    if len(text) <= _SHOWN:
        return text
    start, end = max(40, same - _SHOWN // 4), same + _SHOWN // 2
    return f"{text[:40]} ... {text[start:end]}" + (" ..." if end < len(text) else "")
