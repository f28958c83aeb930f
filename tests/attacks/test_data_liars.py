"""A host that lies about the chunks of a data set, which it gives or gets, loses its own place alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.deploy.features.data.data_push import DataPushResult, DataTransfer, read_here, source
from muster.deploy.features.data.wire.manifest import CHUNK
from tests.hosts_here import HostsHere, contents

pytestmark = pytest.mark.slow  # several processes a test

# An agent loads its parts by this function: it changes one of them.
PATCHED = """
import importlib
honest_import = importlib.import_module
def lying_import(name):
    module = honest_import(name)
    if name == "muster.deploy.features.data.on_host.data":
        patch(module)
    return module
importlib.import_module = lying_import
"""
GIVES_WRONG_CHUNKS = (
    PATCHED
    + """
def patch(module):
    def bundle(self, request, payload):
        content = b"".join(map(self._arrived.read, request["chunks"]))
        return self._kept_as_bundle(bytes(len(content)))
    module.Data.do_data_bundle = bundle
"""
)
CALLS_THEM_WRONG = (
    PATCHED
    + """
def patch(module):
    def accept(self, request):
        if request["chunks"]:
            raise ValueError("a chunk does not match the manifest")
    module.Data.accept = accept
"""
)
SENDS_OTHER_BYTES = (
    PATCHED
    + """
def patch(module):
    blobs = honest_import("muster.deploy.core.agent.transfers")
    blobs.Blobs.read = lambda self, digest, offset, size: iter([bytes(size - offset)])
"""
)


@pytest.fixture
def hosts(tmp_path: Path) -> HostsHere:
    return HostsHere(tmp_path / "hosts", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "digits"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(CHUNK + 1000))
    (root / "small").write_text("small")
    return root


def push(hosts: HostsHere, what: str) -> DataPushResult:
    wanted = source(what, "digits")
    content = read_here(wanted, lambda done, total: None) if wanted.here else None
    with hosts.cluster() as cluster:
        return DataTransfer(cluster, wanted, lambda done, total: None, {}).push(content)


def errors(pushed: DataPushResult) -> dict[str, str]:
    return {host: outcome.error for host, outcome in pushed.hosts.items() if outcome.error}


def complete(hosts: HostsHere, folder: Path) -> list[str]:
    """The hosts that have the set."""
    found = [host.name for host in hosts.hosts if (hosts.data(host.name) / "digits").exists()]
    return [host for host in found if contents(hosts.data(host) / "digits") == contents(folder)]


def test_a_host_that_calls_right_chunks_wrong_is_excluded_alone(hosts: HostsHere, folder: Path) -> None:
    hosts.lies["node2"] = CALLS_THEM_WRONG
    pushed = push(hosts, f"head:{folder}")
    assert errors(pushed) == {"node2": "it reported wrong chunks of node1; they are right, by the check here"}
    assert complete(hosts, folder) == ["node1", "node3"]


def test_a_giver_of_wrong_chunks_is_named_and_the_set_arrives(hosts: HostsHere, folder: Path) -> None:
    three, hosts.hosts = hosts.hosts, hosts.hosts[:1]
    push(hosts, str(folder))
    hosts.hosts, hosts.lies["node1"] = three, GIVES_WRONG_CHUNKS
    pushed = push(hosts, str(folder))
    assert list(errors(pushed)) == ["node1"]
    assert "a chunk does not match the manifest" in errors(pushed)["node1"]
    assert pushed.sent > CHUNK
    assert complete(hosts, folder) == ["node1", "node2", "node3"]


def test_a_head_that_sends_wrong_bytes_keeps_no_host_from_the_set(hosts: HostsHere, folder: Path) -> None:
    hosts.lies["node1"] = SENDS_OTHER_BYTES
    pushed = push(hosts, f"head:{folder}")
    assert errors(pushed) == {}
    assert pushed.sent > CHUNK, "through this machine"
    assert {note.partition(" could ")[0] for note in pushed.notes} == {"note: node2", "note: node3"}
    assert complete(hosts, folder) == ["node1", "node2", "node3"]
