"""`muster put` to hosts of this machine: what is there already is not sent, and nothing wrong is believed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.fanout import on_every
from muster.deploy.core.errors import MusterError, UnfitError
from muster.deploy.core.wire.files import CHUNK_BYTES, Entry
from muster.deploy.features.adhoc import command as fanout
from muster.deploy.features.adhoc.on_host.receive import DRAFTS, KEPT_FROM, _sweep
from muster.deploy.features.adhoc.put_get import get, put
from muster.deploy.features.adhoc.wire import entries, listing_digest
from tests.hosts_here import HostsHere, contents

pytestmark = pytest.mark.slow  # several processes a test
SIZE = 3 * KEPT_FROM


class Stop(MusterError):
    """Somebody interrupts the put."""


@pytest.fixture
def hosts(tmp_path: Path) -> HostsHere:
    return HostsHere(tmp_path / "hosts", 2)


def send(hosts: HostsHere, source: Path, target: str = "place/", stop_after: int = 1 << 60) -> dict[str, int]:
    """The bytes that went to each host; `stop_after`: bytes of all hosts."""
    done = [0]

    def tell(more: int, total: int) -> None:
        done[0] += more
        if done[0] > stop_after:
            raise Stop("enough")

    with hosts.cluster() as cluster:
        return put(cluster, source, target, tell)


def interrupted(hosts: HostsHere, source: Path, after: int) -> None:
    with pytest.raises(UnfitError, match="enough"):
        send(hosts, source, stop_after=after)


def parts(hosts: HostsHere, host: str) -> list[Path]:
    return [path for path in (hosts.home(host) / "place").iterdir() if path.name.endswith(".part")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "folder"
    for name in ("b", "a", "c/d"):
        (root / name).mkdir(parents=True)
        (root / name / "data").write_bytes(os.urandom(SIZE // 3 + len(name)))
        (root / name / "empty").touch()
    (root / "link").symlink_to("a/data")
    (root / "b").chmod(0o555)
    return root


def test_a_name_may_be_as_long_as_a_name_can_be(hosts: HostsHere, tmp_path: Path) -> None:
    source = tmp_path / ("n" * 255)
    source.write_bytes(b"content")
    send(hosts, source)
    assert (hosts.home("node1") / "place" / source.name).read_bytes() == b"content"


def test_an_interrupted_put_resumes(hosts: HostsHere, file: Path) -> None:
    interrupted(hosts, file, 2 * KEPT_FROM + 4 * CHUNK_BYTES)
    kept = {host: sum(part.stat().st_size for part in parts(hosts, host)) for host in ("node1", "node2")}
    assert any(kept.values()), "one of them had more than 4 MiB"
    assert send(hosts, file) == {host: SIZE - size for host, size in kept.items()}
    for host in ("node1", "node2"):
        assert (hosts.home(host) / "place" / "large").read_bytes() == file.read_bytes()
        assert parts(hosts, host) == []


def test_an_interrupted_put_of_a_folder_resumes_in_its_file(hosts: HostsHere, folder: Path) -> None:
    interrupted(hosts, folder, 2 * KEPT_FROM + 4 * CHUNK_BYTES)
    sent = send(hosts, folder)
    assert min(sent.values()) <= SIZE - KEPT_FROM
    assert contents(hosts.home("node2") / "place" / "folder") == contents(folder)
    assert parts(hosts, "node1") == parts(hosts, "node2") == []


def test_what_a_host_has_is_not_sent_again(hosts: HostsHere, file: Path, folder: Path) -> None:
    for source in (file, folder):
        assert set(send(hosts, source).values()) == {sum(one.length for one in _listed(source))}
        file.chmod(0o640)
        assert send(hosts, source) == {"node1": 0, "node2": 0}
    assert (hosts.home("node1") / "place" / "large").stat().st_mode & 0o777 == 0o640
    (hosts.home("node2") / "place" / "large").write_bytes(b"x" * SIZE)
    assert send(hosts, file) == {"node1": 0, "node2": SIZE}
    (hosts.home("node2") / "place" / "folder" / "a" / "more").touch()
    with pytest.raises(UnfitError, match=r"node2: .*place/folder exists; remove it"):
        send(hosts, folder)


def _listed(source: Path) -> list[Entry]:
    return (
        list(entries(str(source))) if source.is_dir() else [Entry("", "file", length=source.stat().st_size)]
    )


def test_what_was_changed_meanwhile_is_noticed_and_sent_anew(hosts: HostsHere, file: Path) -> None:
    interrupted(hosts, file, 2 * KEPT_FROM + 4 * CHUNK_BYTES)
    (part,) = parts(hosts, "node1") or parts(hosts, "node2")
    with part.open("r+b") as opened:
        opened.write(b"others")
    with pytest.raises(UnfitError, match="damaged on the way; try again"):
        send(hosts, file)
    sent = send(hosts, file)
    assert SIZE in sent.values(), "nothing of the damaged part is used"
    assert (hosts.home("node1") / "place" / "large").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("planted", ["link", "second name", "writable by others"])
def test_a_writable_part_is_not_used(hosts: HostsHere, file: Path, tmp_path: Path, planted: str) -> None:
    interrupted(hosts, file, 2 * KEPT_FROM + 4 * CHUNK_BYTES)
    kept = {host: parts(hosts, host) for host in ("node1", "node2")}
    part, other = next(found[0] for found in kept.values() if found), tmp_path / "other"
    if planted == "link":
        part.rename(other)
        part.symlink_to(other)
    elif planted == "second name":
        other.hardlink_to(part)
    else:
        part.chmod(0o666)
    before = part.read_bytes()
    assert SIZE in send(hosts, file).values()
    assert part.read_bytes() == before
    assert (hosts.home("node1") / "place" / "large").read_bytes() == file.read_bytes()


def test_hosts_with_one_home_take_a_folder_together(hosts: HostsHere, folder: Path) -> None:
    hosts.shares = {"node2": "node1"}
    send(hosts, folder)
    assert contents(hosts.home("node1") / "place" / "folder") == contents(folder)
    assert parts(hosts, "node1") == []


def test_ctrl_c_cuts_the_connections(hosts: HostsHere, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to other hosts would be waited for."""
    told: list[object] = []

    def noted(names: Iterable[str], act: Callable[[str], Any], **options: Any) -> Any:
        told.append(options.get("interrupted"))
        return on_every(names, act, **options)

    monkeypatch.setattr("muster.deploy.features.adhoc.put_get.on_every", noted)
    with hosts.cluster() as cluster:
        put(cluster, file, "place/")
        get(cluster, "place/large", hosts.root / "here").require_all()
        assert told == [cluster.close, cluster.close]


def test_a_small_put_leaves_nothing_behind(hosts: HostsHere, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(os.urandom(3 * CHUNK_BYTES))
    interrupted(hosts, small, 4 * CHUNK_BYTES)
    assert parts(hosts, "node1") == parts(hosts, "node2") == []
    assert [path.name for host in ("node1", "node2") for path in (hosts.home(host) / "place").iterdir()] == []


def test_a_sweep_takes_old_drafts_and_no_file_of_the_user(tmp_path: Path) -> None:
    draft = f"{DRAFTS}{'0a' * 10}.part"
    for name in (draft, f".model.{'0a' * 10}.part", f"{DRAFTS}model.part", f"{draft}.txt"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / f"{DRAFTS}{'0b' * 10}.part").touch()
    before = {path.name for path in tmp_path.iterdir()}
    _sweep(str(tmp_path))
    assert before - {path.name for path in tmp_path.iterdir()} == {draft}


def test_two_readings_of_a_folder_are_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, walk = _listed(folder), os.walk

    def other_order(top: str, onerror: Any = None) -> Any:
        for place, folders, names in walk(top, onerror=onerror):
            folders.sort(reverse=True)
            yield place, folders, names

    monkeypatch.setattr(os, "walk", other_order)
    assert _listed(folder) == first
    (folder / "a" / "data").chmod(0o755)
    assert listing_digest(_listed(folder)) != listing_digest(first)


def test_a_command_that_an_agent_refuses_is_over_there(hosts: HostsHere) -> None:
    with hosts.cluster() as cluster:
        ran = fanout.run_on_hosts(cluster, ["true", "no\0word"], None)
    assert {host: (ended.status, ended.end) for host, ended in ran.items()} == {
        "node1": (fanout.LOST, "embedded null byte"),
        "node2": (fanout.LOST, "embedded null byte"),
    }
