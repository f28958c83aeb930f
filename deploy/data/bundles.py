"""Which chunks travel together, to which hosts, and which hosts can give them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..common.data.manifest import CHUNK

MOST_CHUNKS = 4096


@dataclass(frozen=True)
class Bundle:
    """The numbers of chunks that the same hosts lack, their bytes in all, and the hosts that have them."""

    chunks: tuple[int, ...]
    size: int
    missing_on: tuple[str, ...]
    sources: tuple[str, ...] = ()


def bundles(
    lengths: Sequence[int],
    lacking: Mapping[str, Collection[int]],
    have: Mapping[str, Collection[int]],
) -> Iterator[Bundle]:
    """Every missing chunk, in the order of numbers, in bundles of at most CHUNK bytes.

    The same arguments give the same bundles: so a push continues with the bundle that was interrupted.
    """
    growing: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[list[int], int]] = {}
    for number, length in enumerate(lengths):
        missing_on = tuple(host for host, numbers in lacking.items() if number in numbers)
        if not missing_on:
            continue
        key = missing_on, tuple(host for host, numbers in have.items() if number in numbers)
        chunks, size = growing.get(key, ([], 0))
        if chunks and (size + length > CHUNK or len(chunks) == MOST_CHUNKS):
            yield Bundle(tuple(chunks), size, *key)
            chunks, size = [], 0
        chunks.append(number)
        growing[key] = chunks, size + length
    for key, (chunks, size) in growing.items():
        yield Bundle(tuple(chunks), size, *key)
