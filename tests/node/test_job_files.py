"""`muster get JOB` fetches what a program wrote into its job's folders on the hosts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.core.errors import MusterError
from muster.deploy.features.adhoc.messages import FileFacts, ListedEntry
from muster.deploy.features.adhoc.put_get import get_files
from tests.hosts_here import HostsHere

pytestmark = pytest.mark.slow  # several processes a test

JOB = "20261120-120000-abcd"


@pytest.fixture
def hosts(tmp_path: Path) -> HostsHere:
    return HostsHere(tmp_path, 2)


def write(hosts: HostsHere, host: str, **files: str) -> None:
    for name, text in files.items():
        path = hosts.home(host) / ".muster" / "jobs" / JOB / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def got(hosts: HostsHere, here: Path, inner: str = "") -> dict[str, str]:
    """The files that come here, and their texts."""
    with hosts.cluster() as cluster:
        fetched = get_files(cluster.channels, JOB, inner, here)
    assert not fetched.errors
    assert not [*here.glob(".muster-get-*")]
    return {os.fspath(path.relative_to(here)): path.read_text() for path in fetched.paths}


def test_files_keep_their_paths_and_differing_ones_get_their_host(hosts: HostsHere, tmp_path: Path) -> None:
    write(
        hosts,
        "node1",
        **{"code__ckpt__last.pt": "one", "code__same": "x", "out__model.pt": "m", "logs__a": ""},
    )
    write(hosts, "node2", **{"code__ckpt__last.pt": "two", "code__same": "x", "code__empty": ""})
    here = tmp_path / "here"
    assert got(hosts, here) == {
        "ckpt/last@node1.pt": "one",
        "ckpt/last@node2.pt": "two",
        "same": "x",
        "MUSTER_OUT/model.pt": "m",
        "empty": "",
    }
    assert [*got(hosts, here, "ckpt")] == ["ckpt/last@node1.pt", "ckpt/last@node2.pt"]
    assert got(hosts, here, "nothing") == {}


def test_links_of_a_job_stay_links_and_those_out_of_it_are_named(hosts: HostsHere, tmp_path: Path) -> None:
    write(hosts, "node1", code__ck__epoch1="one", out__best="best")
    job, here = hosts.home("node1") / ".muster" / "jobs" / JOB, tmp_path / "here"
    (job / "code" / "ck" / "newest").symlink_to("epoch1")
    (job / "code" / "last").symlink_to("ck/newest")
    (job / "code" / "absolute").symlink_to(job / "out" / "best")
    (job / "out" / "home").symlink_to("/etc")
    for _ in range(2):
        with hosts.cluster() as cluster:
            fetched = get_files(cluster.channels, JOB, "", here)
        assert (fetched.errors, fetched.left_out) == ({}, ["node1: left out: out/home, a link to /etc"])
        links = {
            str(path.relative_to(here)): str(path.readlink()) for path in here.rglob("*") if path.is_symlink()
        }
        assert links == {"ck/newest": "epoch1", "last": "ck/epoch1", "absolute": "MUSTER_OUT/best"}
    assert got(hosts, here, "MUSTER_OUT") == {"MUSTER_OUT/best": "best"}
    assert got(hosts, here, "MUSTER_OUT/best") == {"MUSTER_OUT/best": "best"}


def test_what_is_in_the_way_here_is_named(hosts: HostsHere, tmp_path: Path) -> None:
    write(hosts, "node1", code__a="1", code__b__c="2")
    here = tmp_path / "here"
    (here / "a").mkdir(parents=True)
    with hosts.cluster() as cluster:
        assert f"here: {here / 'a'} is in the way" in str(get_files(cluster.channels, JOB, "a", here).failed)
        (tmp_path / "other").mkdir()
        (here / "b").symlink_to("../other")
        assert f"here: {here / 'b'} is in the way" in str(get_files(cluster.channels, JOB, "b", here).failed)
    assert not [*(tmp_path / "other").iterdir()]


LIES = """
import muster.deploy.core.wire.files as files
digest = files.digest
def lie(path):
    if path.endswith("unreadable"):
        raise PermissionError(13, "Permission denied", path)
    return "0" * 64 if path.endswith("changing") else digest(path)
files.digest = lie
"""


def test_a_file_that_cannot_be_fetched_costs_no_other(hosts: HostsHere, tmp_path: Path) -> None:
    """Root can read every file; and a file that changed is one that was listed with another digest."""
    hosts.lies["node1"] = LIES
    write(
        hosts,
        "node1",
        code__a="1",
        out__changing="2",
        out__unreadable="3",
        out__clash="4",
        code__MUSTER_OUT__clash="5",
    )
    with hosts.cluster() as cluster:
        fetched = get_files(cluster.channels, JOB, "", tmp_path / "here")
    assert [path.name for path in fetched.paths] == ["clash@node1", "a"]
    assert fetched.errors == {}
    assert fetched.failed.keys() == {
        *("MUSTER_OUT/changing", "node1: MUSTER_OUT/unreadable", "node1: out/clash")
    }


def test_a_file_that_was_changed_here_is_not_overwritten(hosts: HostsHere, tmp_path: Path) -> None:
    write(hosts, "node1", code__notes="old", code__last="old", code__log="1")
    here = tmp_path / "here"
    got(hosts, here)
    (here / "notes").write_text("mine")
    write(hosts, "node1", code__notes="new", code__last="new", code__log="1")
    for _ in range(2):
        with hosts.cluster() as cluster:
            fetched = get_files(cluster.channels, JOB, "", here)
        assert [path.name for path in fetched.paths] == ["last", "log"]
        assert [*fetched.failed.values()] == [
            f"{here / 'notes'} was changed here, so it stays; move it, and get it again"
        ]
    assert (here / "notes").read_text() == "mine"
    assert (here / "last").read_text() == "new"
    (here / "notes").unlink()
    assert got(hosts, here)["notes"] == "new"


def test_the_drafts_of_a_killed_command_are_removed(hosts: HostsHere, tmp_path: Path) -> None:
    write(hosts, "node1", code__a="1")
    here = tmp_path / "here"
    for name in (".muster-get-old", ".muster-get-new"):
        (here / name).mkdir(parents=True)
        (here / name / "a").touch()
    for path in (here / ".muster-get-old" / "a", here / ".muster-get-old"):
        os.utime(path, (1, 1))
    with hosts.cluster() as cluster:
        get_files(cluster.channels, JOB, "", here)
    assert sorted(path.name for path in here.iterdir()) == [".muster-get-new", "a"]


def test_a_shared_home_gives_each_file_once(hosts: HostsHere, tmp_path: Path) -> None:
    hosts.shares["node2"] = "node1"
    write(hosts, "node1", code__last="one")
    assert got(hosts, tmp_path / "here") == {"last": "one"}


def test_a_second_time_only_what_has_changed_is_fetched(hosts: HostsHere, tmp_path: Path) -> None:
    write(hosts, "node1", code__a="1", code__b="1")
    here = tmp_path / "here"
    got(hosts, here)
    before = (here / "a").stat()
    write(hosts, "node1", code__b="2")
    assert got(hosts, here) == {"a": "1", "b": "2"}
    assert (here / "a").stat() == before


@pytest.mark.parametrize(
    "path", ["code/../../../x", "code//etc/x", "/etc/x", "logs/x", "code", "code/.git/config", "code/a/./b"]
)
def test_a_path_that_no_program_of_the_job_can_have_written_is_refused(path: str, tmp_path: Path) -> None:
    entry = ListedEntry(path, "file", 0o644, 1, "a" * 64, "")
    lying = SimpleNamespace(host="node1", ask=lambda *words, **more: FileFacts(0o700, entries=(entry,)))
    fetched = get_files({"node1": cast(Any, lying)}, JOB, "", tmp_path / "here")
    assert isinstance(fetched.errors["node1"], MusterError)
    assert (fetched.paths, (tmp_path / "here").exists()) == ([], False)
