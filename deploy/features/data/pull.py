"""Brings a data set from the hosts to this machine: the whole, or the shards of all hosts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.requests.request import Payload
from ...core.content.transfers import OnProgress
from ...core.errors import MusterError, UsageError
from ...core.hosts.received_paths import inner_paths
from ...core.wire.durable import sync_file_system, sync_folder
from .bundles import bring_here, bundles
from .messages import DATA_OPEN, DATA_READ, DataSet
from .push import BUNDLE_SECONDS, LONG_SECONDS, read_manifest
from .wire.draft import Draft
from .wire.manifest import Chunks

AT_ONCE = 2  # requests for bundles that a host has at a time


def pull(cluster: Cluster, name: str, held: Mapping[str, DataSet], target: Path, progress: OnProgress) -> int:
    """Bring the set into the folder `target`, from hosts that hold it; returns its bytes.

    `MusterError` if the hosts have different versions, or not all shards. An interrupted pull leaves its
    draft beside the target, and the next one resumes from it.
    """
    hosts = _host_of_each_shard(name, held)
    if os.path.lexists(target):
        raise UsageError(
            f"{target} exists; remove it, or choose another folder: muster data pull {name} FOLDER"
        )
    first = next(iter(hosts.values()))
    bundle = cluster.channels[first].ask(DATA_OPEN, name=name, seconds=LONG_SECONDS)
    manifest = read_manifest(bring_here(cluster.channels[first], bundle), first)
    if manifest.digest != held[first].digest:
        raise MusterError("it sent another data set than it listed", host=first)
    paths = (*(file.path for file in manifest.files), *(link.path for link in manifest.links))
    inner_paths((*paths, *manifest.folders), first)
    chunks = Chunks(manifest)
    folder = target.with_name(f".{target.name}.{manifest.digest[:16]}.part")
    draft = Draft(str(folder), manifest, chunks, range(len(manifest.files)))
    draft.adopt()
    for shard, host in hosts.items():
        if host != first:
            cluster.channels[host].ask(DATA_OPEN, name=name, seconds=LONG_SECONDS)
        files = (manifest.files[index] for index in manifest.shard(shard, len(hosts)))
        of_shard = {chunks.number[digest] for file in files for digest in file.chunks}
        _receive(cluster.channels[host], draft, of_shard & draft.lacking.keys(), progress)
    draft.finish()
    _make_writable(folder)
    sync_file_system(folder)
    folder.rename(target)
    sync_folder(target.parent)
    return manifest.size


def _host_of_each_shard(name: str, held: Mapping[str, DataSet]) -> dict[int, str]:
    """A host for each shard; 0 alone if hosts have the whole set."""
    if not held:
        raise UsageError(f"no host has a data set {name}; muster data list shows all")
    if damaged := [f"{host}: {copy.error}" for host, copy in held.items() if copy.error]:
        raise MusterError("\n".join(damaged))
    kinds = {(copy.digest, copy.of) for copy in held.values()}
    if len(kinds) > 1:
        raise MusterError(f"the hosts have different versions of {name}; choose one: --include HOST")
    ((_, of),) = kinds
    hosts: dict[int, str] = {}
    for host, copy in held.items():
        hosts.setdefault(copy.shard, host)
    if lacking := sorted({*range(of)} - hosts.keys()):
        raise MusterError(f"no host here has the shards {', '.join(map(str, lacking))} of {of} of {name}")
    return {shard: hosts[shard] for shard in range(of)}


def _receive(channel: Channel, draft: Draft, wanted: set[int], progress: OnProgress) -> None:
    """Bring chunks from one host; each is verified before it is written."""
    lengths = draft.chunks.lengths
    total, done = sum(lengths[number] for number in wanted), 0
    requests: deque[tuple[tuple[int, ...], Future[Payload]]] = deque()

    def take() -> int:
        numbers, future = requests.popleft()
        content = channel.wait(future, BUNDLE_SECONDS).payload
        try:
            for number, chunk in draft.chunks.parts(numbers, content):
                draft.place(number, chunk)
        except ValueError as error:
            raise MusterError(str(error), host=channel.host) from None
        return len(content)

    for bundle in bundles(lengths, {channel.host: wanted}, {}):
        if len(requests) == AT_ONCE:
            progress(done := done + take(), total)
        requests.append((bundle.chunks, channel.post(DATA_READ, chunks=bundle.chunks)))
    while requests:
        progress(done := done + take(), total)


def _make_writable(folder: Path) -> None:
    """Let the owner write to the set, which is read-only on hosts."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)
    folder.chmod(0o755)  # as a new folder is made
