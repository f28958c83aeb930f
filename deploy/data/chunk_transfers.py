"""The bundles of a push: each comes from a host that has its chunks, else from here.

A host that gives a bundle names its digest, so only the chunks in it show whether the bundle is right. If
another host says that they are wrong, the bundle is brought here and checked: one of the two has lied.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..common.data.manifest import CHUNK, Chunks
from ..common.data.scan import Reader
from ..common.os_errors import explain
from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.reports import DataRead, Report
from ..connect.requests.data import (
    DATA_BUNDLE,
    DATA_COMPLETE,
    DATA_FORGET,
    DATA_PART,
    DATA_PULL,
    DATA_TAKE,
    DataBundle,
    DataServed,
)
from ..connect.transfer.files import ANSWER_SECONDS, Requests, Transfer
from ..connect.transfer.transfers import Tell, Transfers
from ..errors import MusterError
from .bundles import Bundle

BUNDLES = Requests(DATA_TAKE, DATA_COMPLETE, DATA_PULL)
MOST_BYTES = 1 << 29


class ChunkTransfers(Transfers):
    """Brings bundles of chunks to the hosts that lack them."""

    def __init__(self, cluster: Cluster, served: Mapping[str, DataServed], tell: Tell) -> None:
        super().__init__(cluster, BUNDLES, served, tell)
        self._reader: Reader | None = None
        self._chunks: Chunks | None = None
        self._bundles: dict[tuple[int, ...], Bundle] = {}
        """The bundles that hosts give, by their chunks, with the sources that are left for them."""

    def bring_file(self, content: bytes, hosts: Iterable[str], source: str = "") -> str:
        """Bring a file that is no chunks, such as a manifest, to hosts; returns its digest."""
        transfer = _transfer(content, Bundle((), len(content), tuple(hosts)))
        self.bring([replace(transfer, source=source)])
        return transfer.digest

    def bring_bundles(self, bundles: Iterable[Bundle], chunks: Chunks, reader: Reader | None) -> None:
        """Bring every bundle of these chunks to its hosts; `reader` gives what no host has."""
        self._chunks, self._reader, listed = chunks, reader, list(bundles)
        self.bring(self._transfers(listed), sum(one.size * len(one.missing_on) for one in listed))

    def _transfers(self, bundles: Iterable[Bundle]) -> Iterator[Transfer]:
        for bundle in bundles:
            if transfer := self._made(bundle):
                yield transfer
            else:
                for host in bundle.missing_on:
                    self.lose(host, "no host is left that could give it the rest; push again")

    def _made(self, bundle: Bundle) -> Transfer | None:
        """The transfer of a bundle from a host that has its chunks, else from here; None if neither has."""
        sources = [host for host in bundle.sources if host not in self.lost]
        while sources:
            source = sources.pop(bundle.chunks[0] % len(sources))  # equal hosts share the work
            try:
                channel = self.cluster.channels[source]
                made = channel.ask(DATA_BUNDLE, chunks=bundle.chunks, seconds=ANSWER_SECONDS)
                if made.bytes != bundle.size:
                    raise MusterError("it gave other bytes than the manifest says")
            except MusterError as error:
                self.lose(source, error.reason)
                continue
            self._bundles[bundle.chunks] = replace(bundle, sources=tuple(sources))
            return _transfer(b"", bundle, source, made.digest)
        return _transfer(self._read(bundle, self._reader), bundle) if self._reader else None

    @staticmethod
    def _read(bundle: Bundle, reader: Reader) -> bytes:
        try:
            return b"".join(map(reader.read, bundle.chunks))
        except OSError as error:
            raise MusterError(explain(error)) from None

    def _is_right(self, transfer: Transfer) -> bool:
        return not transfer.words["chunks"] or self._brought_here(transfer) is not None

    def _replacement(self, host: str, transfer: Transfer) -> Transfer | None:
        if not transfer.words["chunks"]:  # a manifest, which is here too
            return replace(transfer, hosts=(host,), source="")
        bundle = replace(self._bundles[transfer.words["chunks"]], missing_on=(host,))
        if made := self._made(bundle):
            return made
        content = self._brought_here(transfer)
        return None if content is None else _transfer(content, bundle)

    def _brought_here(self, transfer: Transfer) -> bytes | None:
        """The bytes of a bundle from the host that gives it; the host is given up if they are not right."""
        if transfer.source in self.lost or self._chunks is None:
            return None
        try:
            announced = DataBundle(transfer.digest, transfer.size)
            content = bring_here(self.cluster.channels[transfer.source], announced)
            deque(self._chunks.parts(transfer.words["chunks"], content), maxlen=0)
        except (MusterError, ValueError) as error:
            reason = error.reason if isinstance(error, MusterError) else str(error)
            self.lose(transfer.source, f"what it gave to others is wrong, as checked here: {reason}")
            return None
        return content

    def _take_other(self, host: str, report: Report) -> bool:
        if isinstance(report, DataRead):
            self.tell(report.done, report.total)
        return isinstance(report, DataRead)


def bring_here(channel: Channel, bundle: DataBundle) -> bytes:
    """The bytes of a bundle, from the host that has it; `MusterError` if they are not what it announced."""
    if bundle.bytes > MOST_BYTES:
        raise MusterError(f"a manifest of {bundle.bytes} bytes; at most {MOST_BYTES}", host=channel.host)
    content = b""
    while len(content) < bundle.bytes:
        part = channel.ask(DATA_PART, digest=bundle.digest, start=len(content), seconds=ANSWER_SECONDS)
        if not part.payload:
            break
        content += part.payload[:CHUNK]
    if hashlib.sha256(content).hexdigest() != bundle.digest:
        raise MusterError("it gave other bytes than it announced", host=channel.host)
    return content


def _transfer(content: bytes, bundle: Bundle, source: str = "", digest: str = "") -> Transfer:
    digest = digest or hashlib.sha256(content).hexdigest()
    words, forget = {"chunks": bundle.chunks}, DATA_FORGET if bundle.chunks else None
    return Transfer(
        digest, bundle.size, bundle.missing_on, partial(io.BytesIO, content), source, words, forget
    )
