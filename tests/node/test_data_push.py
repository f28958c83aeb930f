"""A data set on its way to several hosts of this machine, each an agent with a home of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from signal import SIGSTOP

import pytest

from muster.deploy.core.connect.fanout import ask_every
from muster.deploy.core.connect.pipe import LostError, Pipe
from muster.deploy.core.errors import MusterError, UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.adhoc.put_get import get
from muster.deploy.features.data.data_push import DataPushResult, DataTransfer, read_here, source
from muster.deploy.features.data.messages import DATA_REMOVE, DATA_VERIFY
from muster.deploy.features.data.wire.manifest import CHUNK
from tests.hosts_here import HostsHere, contents

pytestmark = pytest.mark.slow  # several processes a test

LARGE = os.urandom(2 * CHUNK + 1000)


def silent(done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def hosts(tmp_path: Path) -> HostsHere:
    return HostsHere(tmp_path / "hosts", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a large file, a sparse file, many small files, links, odd names and an empty folder."""
    root = tmp_path / "digits"
    (root / "small" / "empty").mkdir(parents=True)
    (root / "large.bin").write_bytes(LARGE)
    with (root / "sparse").open("wb") as file:
        file.truncate(2 * CHUNK)
    for number in range(300):
        (root / "small" / f"{number}.txt").write_text(f"file {number}\n")
    (root / "small" / "twin.txt").write_text("file 7\n")
    (root / "nothing").touch()
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("small/7.txt")
    Path(os.fsdecode(bytes(root) + b"/odd \xff\n name")).write_text("odd")
    return root


def push(
    hosts: HostsHere, what: str, name: str = "digits", *, connected: Callable[[], None] = lambda: None
) -> DataPushResult:
    """`connected`: called when the hosts are connected."""
    wanted = source(what, name)
    content = read_here(wanted, silent) if wanted.here else None
    with contextlib.closing(hosts.cluster()) as cluster:
        errors = cluster.connect()
        connected()
        return DataTransfer(cluster, wanted, silent, errors).push(content)


def test_every_host_has_the_folder_and_one_copy_left_here(hosts: HostsHere, folder: Path) -> None:
    pushed = push(hosts, str(folder))
    assert [outcome.error for outcome in pushed.hosts.values()] == ["", "", ""]
    distinct = 2 * CHUNK + 1000 + CHUNK + sum(len(f"file {one}\n") for one in range(300)) + 10 + 3
    # Beside the chunks, only the manifest: 307 digests, which do not compress.
    assert distinct < pushed.sent < distinct + 40_000
    for host in ("node1", "node2", "node3"):
        data = hosts.data(host)
        assert contents(data / "digits") == contents(folder)
        assert (data / "digits" / "program").stat().st_mode & 0o777 == 0o555
        assert (data / "digits" / "large.bin").stat().st_mode & 0o777 == 0o444
        assert (data / "digits" / "sparse").stat().st_blocks * 512 < CHUNK, "a hole stays a hole"
        assert list((data / ".chunks").iterdir()) == [], "nothing is kept twice"
    again = push(hosts, str(folder))
    assert [outcome.received for outcome in again.hosts.values()] == [0, 0, 0]
    assert again.sent < 40_000, "the manifest alone"
    (folder / "small" / "150b.txt").write_text("new")  # in the middle of the order
    with (folder / "large.bin").open("ab") as file:
        file.write(b"more")
    grown = push(hosts, str(folder))
    assert {outcome.received for outcome in grown.hosts.values()} == {3 + 1004}
    assert grown.sent < pushed.sent / 100
    assert contents(hosts.data("node3") / "digits") == contents(folder)
    assert len(list((hosts.data("node3") / ".sets").iterdir())) == 2, "the old version is removed"


def test_a_host_that_lacks_everything_gets_it_from_the_others(hosts: HostsHere, folder: Path) -> None:
    whole = hosts.hosts
    hosts.hosts = whole[:2]
    push(hosts, str(folder))
    hosts.hosts = whole
    pushed = push(hosts, str(folder))
    assert pushed.hosts["node3"].received > 2 * CHUNK
    assert pushed.sent < 40_000
    assert contents(hosts.data("node3") / "digits") == contents(folder)


def test_get_brings_a_set_back(hosts: HostsHere, folder: Path, tmp_path: Path) -> None:
    push(hosts, str(folder))
    with hosts.cluster() as cluster:
        got = get(cluster, "~/.muster/data/digits", tmp_path / "back").require_all()
    assert contents(got["node1"]) == contents(folder)


def test_a_folder_of_the_head_leaves_it_only_towards_the_hosts(hosts: HostsHere, folder: Path) -> None:
    folder.rename(hosts.home("node1") / "mine")
    pushed = push(hosts, "head:~/mine")
    assert (pushed.sent, pushed.failed) == (0, False)
    expected = contents(hosts.home("node1") / "mine")
    assert all(contents(hosts.data(host) / "digits") == expected for host in ("node1", "node2", "node3"))


def test_a_host_whose_file_was_damaged_is_found_and_repaired(hosts: HostsHere, folder: Path) -> None:
    push(hosts, str(folder))
    path = hosts.data("node2").resolve() / "digits" / "large.bin"
    before = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[CHUNK + 5] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o444)
    with hosts.cluster() as cluster:
        told = ask_every(cluster.channels, DATA_VERIFY, 60, lambda host: {"name": "digits"}).require_all()
    assert (told["node1"].damaged, told["node3"].damaged) == ((), ())
    assert told["node2"].damaged[0] == f"'large.bin': other bytes than were sent, from {CHUNK} on"
    assert push(hosts, str(folder)).hosts["node2"].received == CHUNK
    assert contents(hosts.data("node2") / "digits") == contents(folder)


def test_a_lost_host_fails_alone_and_resumes_later(hosts: HostsHere, folder: Path) -> None:
    told: list[int] = []

    def strike(done: int, total: int) -> None:
        if not told and done:
            hosts.pipes["node2"]._process.kill()
        told.append(done)

    wanted = source(str(folder), "digits")
    content = read_here(wanted, silent)
    with hosts.cluster() as cluster:
        pushed = DataTransfer(cluster, wanted, strike, {}).push(content)
    failed = [host for host, outcome in pushed.hosts.items() if outcome.error]
    assert failed == ["node2"]
    assert "the data that arrived there is kept" in pushed.hosts["node2"].error
    assert not (hosts.data("node2") / "digits").exists()
    assert contents(hosts.data("node3") / "digits") == contents(folder)
    again = push(hosts, str(folder))
    assert (again.failed, again.sent < 40_000) == (False, True)
    assert contents(hosts.data("node2") / "digits") == contents(folder)


def test_hosts_with_one_home_are_one(hosts: HostsHere, folder: Path) -> None:
    hosts.shares = {"node3": "node1"}
    pushed = push(hosts, str(folder))
    assert [outcome.same_as for outcome in pushed.hosts.values()] == ["", "", "node1"]
    assert not pushed.failed


def test_hosts_that_are_down_frozen_or_full_keep_no_other_from_it(hosts: HostsHere, folder: Path) -> None:
    hosts.hosts = hostfile.parse("node[1-4]")
    hosts.wrap = lambda host, pipe: pipe if host != "node2" else _refuse()
    # Its disk has room for nothing.
    hosts.lies["node4"] = (
        "import os; full = os.statvfs('/proc'); os.statvfs = os.fstatvfs = lambda path: full"
    )
    pushed = push(hosts, str(folder), connected=lambda: hosts.pipes["node3"]._process.send_signal(SIGSTOP))
    assert {host: bool(outcome.error) for host, outcome in pushed.hosts.items()} == {
        **{"node1": False, "node2": True, "node3": True, "node4": True}
    }
    assert pushed.hosts["node2"].error == "no route to it"
    assert "room" in pushed.hosts["node4"].error
    assert contents(hosts.data("node1") / "digits") == contents(folder)
    with pytest.raises(UnfitError, match="node2: no route to it"):
        hosts.hosts = hosts.hosts[1:2]
        push(hosts, str(folder))


def _refuse() -> Pipe:
    raise LostError("no route to it")


def test_a_source_that_changes_meanwhile_is_refused(hosts: HostsHere, folder: Path) -> None:
    wanted = source(str(folder), "digits")
    content = read_here(wanted, silent)
    (folder / "large.bin").write_bytes(b"other")
    with hosts.cluster() as cluster, pytest.raises(MusterError, match=r"'large.bin' changes while it"):
        DataTransfer(cluster, wanted, silent, {}).push(content)
    assert not (hosts.data("node1") / "digits").exists()


def test_a_push_sweeps_old_rests_and_a_set_in_use_stays(hosts: HostsHere, folder: Path) -> None:
    drafts = hosts.data("node1") / ".drafts"
    left = [drafts / "old@1", drafts / "digits@1"]
    for path in left:
        path.mkdir(parents=True)
        (path / "file").touch()
        for old in (path / "file", path):
            os.utime(old, (0, 0))
    push(hosts, str(folder))
    assert [path.exists() for path in left] == [False] * 2
    lock = hosts.home("node1") / ".muster" / "jobs" / "20261121-120000-abcd" / "lock.node1"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held, hosts.cluster() as cluster:
        fcntl.flock(held, fcntl.LOCK_SH)
        asked = ask_every(cluster.channels, DATA_REMOVE, 60, lambda host: {"name": "digits"})
    assert asked.errors.keys() == {"node1"}
    assert "the job 20261121-120000-abcd runs on this host" in asked.errors["node1"].reason
    assert [(hosts.data(host) / "digits").exists() for host in ("node1", "node2")] == [True, False]
    assert list((hosts.data("node2") / ".sets").iterdir()) == []
