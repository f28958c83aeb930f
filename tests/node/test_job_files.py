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
