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
from ..connect.parcels import ANSWER_SECONDS, Parcel, Requests
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
from ..connect.spread import Spread, Tell
from ..errors import MusterError
from .bundles import Bundle

BUNDLES = Requests(DATA_TAKE, DATA_COMPLETE, DATA_PULL)
MOST_BYTES = 1 << 29


class Giving(Spread):
    """Brings bundles of chunks to the hosts that lack them."""

    def __init__(self, cluster: Cluster, served: Mapping[str, DataServed], tell: Tell) -> None:
        super().__init__(cluster, BUNDLES, served, tell)
        self._reader: Reader | None = None
        self._chunks: Chunks | None = None
        self._bundles: dict[str, Bundle] = {}
        """The bundles that were made, by the digest of their bytes."""

    def bring_file(self, content: bytes, hosts: Iterable[str], giver: str = "") -> str:
        """Bring a file that is no chunks, such as a manifest, to hosts; returns its digest."""
        parcel = _parcel(content, Bundle((), len(content), tuple(hosts)))
        self.bring([replace(parcel, giver=giver)])
        return parcel.digest

    def bring_bundles(self, bundles: Iterable[Bundle], chunks: Chunks, reader: Reader | None) -> None:
        """Bring every bundle of these chunks to its hosts; `reader` gives what no host has."""
        self._chunks, self._reader, listed = chunks, reader, list(bundles)
        self.bring(self._parcels(listed), sum(one.size * len(one.lackers) for one in listed))

    def _parcels(self, bundles: Iterable[Bundle]) -> Iterator[Parcel]:
        for bundle in bundles:
            if parcel := self._made(bundle):
                yield parcel
            else:
                for host in bundle.lackers:
                    self.lose(host, "no host is left that could give it the rest; push again")

    def _made(self, bundle: Bundle) -> Parcel | None:
        """A bundle as a parcel, from a host that has its chunks, else from here; None if neither has them."""
        givers = [host for host in bundle.givers if host not in self.lost]
        while givers:
            giver = givers.pop(bundle.chunks[0] % len(givers))  # hosts with equal chunks take turns
            try:
                channel = self.cluster.channels[giver]
                made = channel.ask(DATA_BUNDLE, chunks=bundle.chunks, seconds=ANSWER_SECONDS)
                if made.bytes != bundle.size:
                    raise MusterError("it gave other bytes than the manifest says")
            except MusterError as error:
                self.lose(giver, error.reason)
                continue
            self._bundles[made.digest] = replace(bundle, givers=tuple(givers))
            return _parcel(b"", bundle, giver, made.digest)
        return _parcel(self._read(bundle, self._reader), bundle) if self._reader else None

    @staticmethod
    def _read(bundle: Bundle, reader: Reader) -> bytes:
        try:
            return b"".join(map(reader.read, bundle.chunks))
        except OSError as error:
            raise MusterError(explain(error)) from None

    def _is_right(self, parcel: Parcel) -> bool:
        return parcel.digest not in self._bundles or self._brought_here(parcel) is not None

    def _instead(self, host: str, parcel: Parcel) -> Parcel | None:
        bundle = self._bundles.get(parcel.digest)
        if bundle is None:  # a manifest, which is here too
            return replace(parcel, hosts=(host,), giver="")
        bundle = replace(bundle, lackers=(host,))
        if made := self._made(bundle):
            return made
        content = self._brought_here(parcel)
        return None if content is None else _parcel(content, bundle)

    def _brought_here(self, parcel: Parcel) -> bytes | None:
        """The bytes of a bundle from the host that gives it; the host is given up if they are not right."""
        if parcel.giver in self.lost or self._chunks is None:
            return None
        try:
            announced = DataBundle(parcel.digest, parcel.size)
            content = bring_here(self.cluster.channels[parcel.giver], announced)
            deque(self._chunks.parts(self._bundles[parcel.digest].chunks, content), maxlen=0)
        except (MusterError, ValueError) as error:
            reason = error.reason if isinstance(error, MusterError) else str(error)
            self.lose(parcel.giver, f"what it gave to others is wrong, as checked here: {reason}")
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


def _parcel(content: bytes, bundle: Bundle, giver: str = "", digest: str = "") -> Parcel:
    digest = digest or hashlib.sha256(content).hexdigest()
    words, forget = {"chunks": bundle.chunks}, DATA_FORGET if bundle.chunks else None
    return Parcel(digest, bundle.size, bundle.lackers, partial(io.BytesIO, content), giver, words, forget)
