"""Brings a data set to every host. Each chunk that no host has leaves this machine once.

A host that lacks chunks gets them in bundles from a host that has them, or this machine sends them to a
first host; from there they go through a tree of hosts (core/content/transfer_state.py) while they still
arrive. Chunks that have arrived stay: the next push asks each host for its missing chunks, and resumes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.connect.reports import Report
from ...core.content.messages import BLOB_FORGET, FilesServed
from ...core.content.push_result import PushResult
from ...core.content.transfer_state import ANSWER_SECONDS, serve
from ...core.content.tree_transfer import OnProgress, Transfers
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.text.text import count
from ...core.wire.os_errors import explain
from .bundles import LONG_SECONDS, Bundle, BundleSource, bring_here, bring_manifest, bundles
from .messages import DATA_BEGIN, DATA_PUBLISH, DATA_SCAN, DataBegun, DataRead
from .wire.manifest import Chunks, Manifest, numbers, require_name, unpack
from .wire.scan import Reader, scan

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
    """A manifest, also packed, and the reader of its chunks; None if the head has them."""

    manifest: Manifest
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
    return Content(manifest, manifest.packed(), Reader(source.here, manifest, Chunks(manifest)))


class DataTransfer:
    """The push of a data set to the hosts of a cluster. A host that fails does not keep it from the others.

    `unreached`: the errors of hosts that could not be connected.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: DataSource,
        progress: OnProgress,
        unreached: Mapping[str, MusterError],
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
        chunks = Chunks(content.manifest)
        BundleSource(transfers, chunks, content.reader).bring(self._bundles(chunks, begun))
        self.pushed.sent, self.pushed.notes = transfers.sent, transfers.notes
        self._failed |= transfers.lost
        self._publish(hosts, _seconds_for(content.manifest))
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
            self.pushed.hosts[host].same_as = first.setdefault(answer.place, host)
            if first[answer.place] == host:
                self.pushed.hosts[host].same_as = ""
        return {host: answer for host, answer in served.items() if not self.pushed.hosts[host].same_as}

    def _read_by_head(self, transfers: Transfers, head: str) -> Content:
        """Let the head read its folder; its manifest is untrusted input."""
        bundle = transfers.answer(head, DATA_SCAN, LONG_SECONDS, path=self._source.there)
        packed = bring_here(self._cluster.channels[head], bundle)
        return Content(read_manifest(packed, head), packed, None)

    def _begin(self, hosts: list[str], content: Content, digest: str) -> dict[str, DataBegun]:
        """Ask each host for its missing chunks. A host with too little disk space fails here."""
        manifest, version = content.manifest, {"name": self._source.name, "manifest": digest}
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
