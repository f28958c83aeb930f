"""Brings a data set to every host. Each chunk that no host has leaves this machine once.

A host that lacks chunks gets them in bundles from a host that has them, or this machine sends them to a
first host; from there they go through a tree of hosts (core/content/transfer_state.py) while they still
arrive. Chunks that have arrived stay: the next push asks each host for its missing chunks, and resumes.

The source of a bundle names its digest, so only the chunks in it show whether the bundle is right. If another
host reports that they are wrong, the bundle is brought here and verified: one of the two is at fault.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.connect.reports import Report
from ...core.content.messages import BLOB_FORGET, FilesServed
from ...core.content.push_result import PushResult
from ...core.content.transfer_state import ANSWER_SECONDS, Transfer, serve
from ...core.content.tree_transfer import OnProgress, Transfers
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.job.fetch_output import fetched
from ...core.text.text import count
from ...core.wire.os_errors import explain
from ...core.wire.paths import MusterPaths
from .messages import DATA_BEGIN, DATA_BUNDLE, DATA_PUBLISH, DATA_SCAN, DataBegun, DataBundle, DataRead
from .wire.manifest import CHUNK, Chunks, Manifest, Reader, numbers, require_name, scan, unpack

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


BUNDLE_SECONDS = 600.0  # for 4 MiB, which may be thousands of files
SLOWEST = 2e6  # bytes a second that any disk reads and writes

HEAD = "head:"


@dataclass(frozen=True)
class DataSource:
    """A folder or file here (`here`), or a path of the head (`there`)."""

    name: str
    here: str = ""
    there: str = ""


def source(text: str, name: str) -> DataSource:
    """The source that a user named. `name`: of the set, by default the folder's."""
    if not text:
        raise UsageError("which folder? muster data push FOLDER [NAME]")
    if text.lower().startswith(("http://", "https://")):  # it may have a password: not shown
        raise UsageError("data push URL was removed: use `muster run -- curl -O URL`, or push a folder")
    if text.startswith(HEAD):
        path = text.removeprefix(HEAD)
        if not path:
            raise UsageError(f"{text}: which folder of the head? head:/path")
        return DataSource(_named(path, name, text), there=path)
    if not Path(text).exists():
        raise UsageError(f"{text}: no such file or folder here")
    path = os.path.realpath(text)
    return DataSource(_named(path, name, text), here=path)


def _named(path: str, name: str, text: str) -> str:
    try:
        return require_name(name or path.rstrip("/").rpartition("/")[2])
    except ValueError as error:
        raise UsageError(f"{error}; give another: muster data push {shlex.quote(text)} NAME") from None


@dataclass
class DataPushOutcome:
    """The outcome on a host. `files`, `size`: of the set; `received`: the bytes that it lacked."""

    files: int = 0
    size: int = 0
    received: int = 0
    same_as: str = ""
    """Another host with the same folder of data sets: they share a home."""
    error: str = ""

    def __str__(self) -> str:
        if self.same_as:
            return f"has the same home as {self.same_as}"
        holds = f"{count(self.files, 'file')}, {self.size / 1e6:.1f} MB"
        if not self.received:
            return f"{holds}: already up to date"
        return f"{holds}: {self.received / 1e6:.1f} MB transferred"


DataPushResult = PushResult[DataPushOutcome]


@dataclass(frozen=True)
class Content:
    """The chunks of a manifest, which is packed, too, and their reader; None if the head has them."""

    chunks: Chunks
    packed: bytes
    reader: Reader | None


def read_here(source: DataSource, progress: OnProgress) -> Content:
    """Read the folder here; `UsageError` if it cannot become a data set."""
    try:
        manifest = scan(source.here, progress)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(explain(error)) from None
    chunks = Chunks(manifest)
    return Content(chunks, manifest.packed(), Reader(source.here, chunks))


class DataTransfer:
    """The push of a data set to the hosts of a cluster. A host that fails does not keep it from the others.

    `unreached`: the errors of hosts that could not be connected.
    """

    def __init__(
        self, cluster: Cluster, source: DataSource, progress: OnProgress, unreached: Mapping[str, MusterError]
    ) -> None:
        self._cluster, self._source, self._progress = cluster, source, progress
        self.pushed = DataPushResult(source.name, {host.name: DataPushOutcome() for host in cluster.hosts})
        self._failed = {host: error.reason for host, error in unreached.items()}

    def push(self, content: Content | None) -> DataPushResult:
        """Bring every host its missing chunks, and publish the set. `content`: None if the head has it.

        `UnfitError` if no host is left, or if the head has to be there and is not.
        """
        transfers = Transfers(self._cluster, self._serve(), self._progress)
        transfers.take_other = self._take_other
        hosts = [host for host in self._left() if not self.pushed.hosts[host].same_as]
        if content is None:
            if (head := self._cluster.hosts[0].name) in self._failed:
                raise UnfitError([(head, self._failed[head])])
            content = self._read_by_head(transfers, head)
            digest = bring_manifest(transfers, content.packed, hosts[1:], source=head)
        else:
            digest = bring_manifest(transfers, content.packed, hosts)
        self._failed |= transfers.lost
        begun = self._begin([host for host in self._left() if host in hosts], content, digest)
        hosts = [host for host in self._left() if host in hosts]
        chunks = content.chunks
        BundleSource(transfers, chunks, content.reader).bring(self._bundles(chunks, begun))
        self.pushed.sent, self.pushed.notes = transfers.sent, transfers.notes
        self._failed |= transfers.lost
        self._publish(hosts, _seconds_for(chunks.manifest))
        self._forget(hosts, digest)
        return self.pushed

    def _left(self) -> list[str]:
        """The hosts that have not failed; `UnfitError` if there are none."""
        left = [host for host in self.pushed.hosts if host not in self._failed]
        if not left:
            raise UnfitError(self._failed.items())
        return left

    def _take_other(self, host: str, report: Report) -> bool:
        """Show the bytes of its source that the head has read."""
        if isinstance(report, DataRead):
            self._progress(report.done, report.total)
        return isinstance(report, DataRead)

    def _serve(self) -> dict[str, FilesServed]:
        """Let each host serve the others; hosts with the same folder are one."""
        outcomes = serve(self._cluster, "data", dict.fromkeys(self._left()))
        self._note(outcomes.errors)
        served, first = outcomes.results, dict[str, str]()
        for host, answer in served.items():
            same = first.setdefault(answer.place, host)
            self.pushed.hosts[host].same_as = same if same != host else ""
        return {host: answer for host, answer in served.items() if not self.pushed.hosts[host].same_as}

    def _read_by_head(self, transfers: Transfers, head: str) -> Content:
        """Let the head read its folder; its manifest is untrusted input."""
        bundle = transfers.answer(head, DATA_SCAN, LONG_SECONDS, path=self._source.there)
        packed = bring_here(self._cluster.channels[head], bundle)
        return Content(Chunks(read_manifest(packed, head)), packed, None)

    def _begin(self, hosts: list[str], content: Content, digest: str) -> dict[str, DataBegun]:
        """Ask each host for its missing chunks. A host with too little disk space fails here."""
        manifest, version = content.chunks.manifest, {"name": self._source.name, "manifest": digest}
        for host in hosts:
            self.pushed.hosts[host] = DataPushOutcome(len(manifest.files), manifest.size)
        channels = {host: self._cluster.channels[host] for host in hosts}
        outcomes = ask_every(channels, DATA_BEGIN, _seconds_for(manifest), lambda host: version)
        self._note(outcomes.errors)
        return outcomes.results

    def _note(self, errors: Mapping[str, MusterError]) -> None:
        self._failed |= {host: error.reason for host, error in errors.items()}

    def _bundles(self, chunks: Chunks, begun: Mapping[str, DataBegun]) -> list[Bundle]:
        sets: dict[str, tuple[set[int], set[int]]] = {}
        for host, answer in begun.items():
            try:
                sets[host] = numbers(answer.lacking, len(chunks)), numbers(answer.have, len(chunks))
            except ValueError as error:
                raise UnfitError([(host, f"its list of chunks: {error}")]) from None
            self.pushed.hosts[host].received = sum(chunks.lengths[number] for number in sets[host][0])
        lacking = {host: lack for host, (lack, _) in sets.items()}
        return list(bundles(chunks.lengths, lacking, {host: have for host, (_, have) in sets.items()}))

    def _publish(self, hosts: list[str], seconds: float) -> None:
        """Publish the set on hosts with all chunks; hosts that share a home have the first one's outcome."""
        channels = {host: self._cluster.channels[host] for host in hosts if host not in self._failed}
        self._note(ask_every(channels, DATA_PUBLISH, seconds).errors)
        for host, outcome in self.pushed.hosts.items():
            outcome.error = self._failed.get(host) or self._failed.get(outcome.same_as, "")

    def _forget(self, hosts: list[str], digest: str) -> None:
        live = {host: self._cluster.channels[host] for host in hosts if not self.pushed.hosts[host].error}
        ask_every(live, BLOB_FORGET, ANSWER_SECONDS, lambda host: {"digests": [digest]})


def _seconds_for(manifest: Manifest) -> float:
    """The time limit of a host for a set."""
    return BUNDLE_SECONDS + len(manifest.files) * 0.01 + manifest.size / SLOWEST


def read_manifest(sent: bytes, host: str) -> Manifest:
    """The manifest that a host sent; `MusterError` for one that could reach out of its folder."""
    try:
        return unpack(sent)
    except ValueError as error:
        raise MusterError(str(error), host=host) from None
