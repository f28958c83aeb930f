"""The bundles of a push: each comes from a host that has its chunks, else from here."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..common.data.scan import Reader
from ..common.os_errors import explain
from ..connect.cluster import Cluster
from ..connect.parcels import ANSWER_SECONDS, Parcel, Requests
from ..connect.reports import DataRead, Report
from ..connect.requests.data import DATA_BUNDLE, DATA_COMPLETE, DATA_FORGET, DATA_PULL, DATA_TAKE, DataServed
from ..connect.spread import Spread, Tell
from ..errors import MusterError
from .bundles import Bundle

BUNDLES = Requests(DATA_TAKE, DATA_COMPLETE, DATA_PULL)


class Giving(Spread):
    """Brings bundles of chunks to the hosts that lack them."""

    def __init__(self, cluster: Cluster, served: Mapping[str, DataServed], tell: Tell) -> None:
        super().__init__(cluster, BUNDLES, served, tell)
        self._reader: Reader | None = None
        self._bundles: dict[str, Bundle] = {}
        """The bundles that were made, by the digest of their bytes."""

    def bring_file(self, content: bytes, hosts: Iterable[str], giver: str = "") -> str:
        """Bring a file that is no chunks, such as a manifest, to hosts; returns its digest."""
        parcel = _parcel(content, Bundle((), len(content), tuple(hosts)))
        self.bring([replace(parcel, giver=giver)])
        return parcel.digest

    def bring_bundles(self, bundles: Iterable[Bundle], reader: Reader | None) -> None:
        """Bring every bundle to its hosts; `reader` gives what no host has."""
        self._reader, listed = reader, list(bundles)
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

    def _instead(self, host: str, parcel: Parcel) -> Parcel | None:
        bundle = self._bundles.get(parcel.digest)
        return self._made(replace(bundle, lackers=(host,))) if bundle else None

    def _take_other(self, host: str, report: Report) -> bool:
        if isinstance(report, DataRead):
            self.tell(report.done, report.total)
        return isinstance(report, DataRead)


def _parcel(content: bytes, bundle: Bundle, giver: str = "", digest: str = "") -> Parcel:
    digest = digest or hashlib.sha256(content).hexdigest()
    words, forget = {"chunks": bundle.chunks}, DATA_FORGET if bundle.chunks else None
    return Parcel(digest, bundle.size, bundle.lackers, partial(io.BytesIO, content), giver, words, forget)
