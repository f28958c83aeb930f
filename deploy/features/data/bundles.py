"""Bundles of chunks: which chunks go together, to which hosts, and from which source.

A bundle comes from a host that has its chunks, else from this machine. Its source names its digest, so only
the chunks in it show whether the bundle is right. If another host reports that they are wrong, the bundle is
brought here and verified: one of the two is at fault.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...core.connect.channel import Channel
from ...core.content.transfer_state import ANSWER_SECONDS, Transfer
from ...core.content.tree_transfer import Transfers
from ...core.errors import MusterError
from ...core.job.fetch_output import fetched
from ...core.wire.os_errors import explain
from ...core.wire.paths import MusterPaths
from .messages import DATA_BUNDLE, DataBundle
from .wire.manifest import CHUNK, Chunks
from .wire.scan import Reader

DATA = MusterPaths.of_home("~").of("data")
LONG_SECONDS = 7 * 86400.0  # for a host that reads a large folder; a silent or stuck one is lost earlier
MOST_CHUNKS = 4096
MOST_BYTES = 1 << 29


@dataclass(frozen=True)
class Bundle:
    """The numbers of chunks that the same hosts lack, their total bytes, and the hosts that have them."""

    chunks: tuple[int, ...]
    size: int
    missing_on: tuple[str, ...]
    sources: tuple[str, ...] = ()


def bundles(
    lengths: Sequence[int], lacking: Mapping[str, Collection[int]], have: Mapping[str, Collection[int]]
) -> Iterator[Bundle]:
    """Every missing chunk, in the order of numbers, in bundles of at most CHUNK bytes.

    The same arguments give the same bundles, so a push resumes with the interrupted bundle.
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


class BundleSource:
    """Brings bundles of a manifest's chunks to hosts. `reader`: gives the chunks that no host has."""

    def __init__(self, transfers: Transfers, chunks: Chunks, reader: Reader | None) -> None:
        self._transfers, self._chunks, self._reader = transfers, chunks, reader

    def bring(self, wanted: Sequence[Bundle]) -> None:
        """Bring every bundle to the hosts that lack its chunks."""
        total = sum(bundle.size * len(bundle.missing_on) for bundle in wanted)
        self._transfers.bring(self._all(wanted), total)

    def _all(self, wanted: Iterable[Bundle]) -> Iterator[Transfer]:
        for bundle in wanted:
            if transfer := self._made(bundle):
                yield transfer
            else:
                for host in bundle.missing_on:
                    self._transfers.lose(host, "no host left with the missing chunks; push again")

    def _made(self, bundle: Bundle) -> Transfer | None:
        """The transfer of a bundle from a host that has its chunks, else from here; None if neither has."""
        sources = [host for host in bundle.sources if host not in self._transfers.lost]
        while sources:
            source = sources.pop(bundle.chunks[0] % len(sources))  # equal hosts share the work
            try:
                channel = self._transfers.cluster.channels[source]
                made = channel.ask(DATA_BUNDLE, chunks=bundle.chunks, seconds=ANSWER_SECONDS)
                if made.bytes != bundle.size:
                    raise MusterError("it sent chunks with wrong checksums")
                return self._from_host(channel, made, replace(bundle, sources=tuple(sources)))
            except MusterError as error:
                self._transfers.lose(source, error.reason)
        if self._reader is None:
            return None
        try:
            return _from_here(b"".join(map(self._reader.read, bundle.chunks)), bundle)
        except OSError as error:
            raise MusterError(explain(error)) from None

    def _from_host(self, source: Channel, made: DataBundle, bundle: Bundle) -> Transfer:
        return replace(
            _from_here(b"", bundle),
            digest=made.digest,
            source=source.host,
            is_right=lambda: self._checked(source, made, bundle) is not None,
            replacement=partial(self._replacement, source, made, bundle),
        )

    def _replacement(self, source: Channel, made: DataBundle, bundle: Bundle, host: str) -> Transfer | None:
        """The transfer of a bundle for a host that could not get it from its source."""
        bundle = replace(bundle, missing_on=(host,))
        if transfer := self._made(bundle):
            return transfer
        content = self._checked(source, made, bundle)
        return None if content is None else _from_here(content, bundle)

    def _checked(self, source: Channel, made: DataBundle, bundle: Bundle) -> bytes | None:
        """The bytes of a bundle from its source; None for wrong bytes, which end the use of that host."""
        if source.host in self._transfers.lost:
            return None
        try:
            content = bring_here(source, made)
            deque(self._chunks.parts(bundle.chunks, content), maxlen=0)
        except (MusterError, ValueError) as error:
            reason = error.reason if isinstance(error, MusterError) else str(error)
            self._transfers.lose(source.host, f"it sent wrong chunks to other hosts: {reason}")
            return None
        return content


def bring_manifest(transfers: Transfers, packed: bytes, hosts: Sequence[str], source: str = "") -> str:
    """Bring a manifest to hosts, from the host that has it or from here; returns its digest."""
    from_here = _from_here(packed, Bundle((), len(packed), tuple(hosts)))

    def replacement(host: str) -> Transfer:
        return replace(from_here, hosts=(host,))

    transfers.bring([replace(from_here, source=source, replacement=replacement)])
    return from_here.digest


def bring_here(channel: Channel, bundle: DataBundle) -> bytes:
    """The bytes of a bundle, from the host that has it; `MusterError` if they do not match its digest."""
    if bundle.bytes > MOST_BYTES:
        raise MusterError(f"a manifest of {bundle.bytes} bytes; at most {MOST_BYTES}", host=channel.host)
    content = fetched(channel, f"{DATA}/.chunks/{bundle.digest}", LONG_SECONDS, bundle.bytes)
    if hashlib.sha256(content).hexdigest() != bundle.digest:
        raise MusterError("it sent other bytes than it announced", host=channel.host)
    return content


def _from_here(content: bytes, bundle: Bundle) -> Transfer:
    return Transfer(
        digest=hashlib.sha256(content).hexdigest(),
        size=bundle.size,
        hosts=bundle.missing_on,
        open=partial(io.BytesIO, content),
        arguments={"chunks": bundle.chunks},
        forget=bool(bundle.chunks),
    )
