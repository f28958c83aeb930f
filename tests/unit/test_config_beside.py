"""Whose SSH configuration is used: it can run commands, so nobody else may have written it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.project import project_of
from muster.deploy.cli.shared import RecordOptions, hosts_file_of
from muster.deploy.core.connect import opener, ownership
from muster.deploy.core.connect.opener import config_beside, pythons_beside
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts.hostfile import Host
from tests.unit.test_job_states import RECORD


@pytest.fixture
def made(tmp_path: Path) -> Path:
    config = tmp_path / ".muster" / "ssh_config"
    config.parent.mkdir(mode=0o755)
    config.write_text("Host node1\n")
    config.chmod(0o600)
    return config


def test_the_configuration_beside_the_hosts_file_is_used(made: Path, tmp_path: Path) -> None:
    assert config_beside(tmp_path / "hosts.txt") == made
    assert config_beside(tmp_path / "elsewhere" / "hosts.txt") is None


def test_one_of_a_cloned_repository_is_refused(made: Path, tmp_path: Path) -> None:
    """It can run any command as the user, and git gives it the mode of the umask."""
    made.chmod(0o644)
    with pytest.raises(UsageError, match=f"others may read it, .*; read it, then: chmod go= {made}$"):
        config_beside(tmp_path / "hosts.txt")


@pytest.mark.parametrize("mode", [0o020, 0o002, 0o022])
@pytest.mark.parametrize("name", [".muster", ".muster/ssh_config"])
def test_one_that_others_may_write_is_refused_with_what_mends_it(
    made: Path, tmp_path: Path, name: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "is_private", lambda group: False)  # a group of several users
    place = tmp_path / name
    place.chmod(place.stat().st_mode | mode)
    with pytest.raises(UsageError, match=f"{name}: others may write to it, .*; do: chmod go-w {place}$"):
        config_beside(tmp_path / "hosts.txt")
    place.chmod(place.stat().st_mode & ~0o022)  # which is what that does
    assert config_beside(tmp_path / "hosts.txt") == made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".muster", ".muster/ssh_config"])
def test_one_that_belongs_to_another_user_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    os.chown(tmp_path / name, 12345, 12345)
    with pytest.raises(
        UsageError, match=f"{name}: belongs to 12345, .* sudo chown -h root {tmp_path / name}$"
    ):
        config_beside(tmp_path / "hosts.txt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_that_another_user_made_is_refused(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / ".muster").symlink_to(made.parent)
    assert config_beside(other / "hosts.txt")
    os.chown(other / ".muster", 12345, 12345, follow_symlinks=False)
    with pytest.raises(UsageError, match=r"\.muster: belongs to 12345"):
        config_beside(other / "hosts.txt")


PYTHON = ".muster-venv/current/bin/python"


@pytest.fixture
def named(made: Path) -> Path:
    pythons = made.parent / "pythons"
    pythons.write_text(f"# Written by setup.yml\nnode1 {PYTHON}\nnode2 /opt/my python/bin/python3\ngarbage\n")
    pythons.chmod(0o600)
    return pythons


def test_each_host_has_the_python_that_setup_gave_it(named: Path, tmp_path: Path) -> None:
    expected = {"node1": PYTHON, "node2": "/opt/my python/bin/python3"}
    assert pythons_beside(tmp_path / "hosts.txt") == expected
    assert pythons_beside(tmp_path / "elsewhere" / "hosts.txt") == {}


def test_a_list_of_pythons_that_others_may_write_is_refused(named: Path, tmp_path: Path) -> None:
    named.chmod(0o666)
    with pytest.raises(UsageError, match=r"pythons: others may write to it, .* run on the hosts as you; do:"):
        pythons_beside(tmp_path / "hosts.txt")


@pytest.mark.parametrize(
    ("given", "host", "started"),
    [("", "node1", PYTHON), ("", "node3", "python3"), ("python3.12", "node1", "python3.12")],
    ids=["setup's", "the host's", "the user's"],
)
@pytest.mark.usefixtures("named")
def test_the_users_python_goes_before_setups_and_that_before_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, host: str, started: str
) -> None:
    from muster.deploy.core.connect.transports import openssh

    monkeypatch.setattr(openssh, "OpenSshPipe", lambda host, python, ssh_config: (host.name, python))
    way: object = opener.access_beside(tmp_path / "hosts.txt", given).open(Host(host))
    assert way == (host, started)


@pytest.mark.usefixtures("named")
def test_this_machine_has_its_own_python_whatever_setup_gave_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opener, "LocalPipe", lambda python, env: python)
    assert opener.access_beside(tmp_path / "hosts.txt", "").open(Host("localhost")) is None


@pytest.mark.parametrize(
    ("name", "record"), [("20261120-234529-b2d8", {}), ("20261120-234529-b2d8", None), ("renamed", RECORD)]
)
@pytest.mark.parametrize("inside", [".", "logs"])
def test_nothing_is_read_from_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, record: dict[str, Any] | None, inside: str
) -> None:
    """Hosts have written its files, also those of `muster get JOB` for a job whose run is elsewhere."""
    for folder in (tmp_path, tmp_path / "runs" / name, tmp_path / "runs" / name / "logs"):
        (folder / "runs" / "20260101-000000-0000").mkdir(parents=True, exist_ok=True)
        (folder / "hosts.txt").write_text("node1\n")
        (folder / "muster.toml").write_text("np = 2\n")
    if record is None:
        (tmp_path / "runs" / name / "files").mkdir()
    else:
        (tmp_path / "runs" / name / "job.json").write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path / "runs" / name / inside)
    project = project_of()
    assert project
    found = (hosts_file_of(""), RecordOptions().hosts_file, RecordOptions().runs_folder, project.path)
    assert [path.relative_to(tmp_path) for path in found] == [
        Path(name) for name in ("hosts.txt", "hosts.txt", "runs", "muster.toml")
    ]


def test_a_project_with_a_job_json_of_its_own_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").write_text('{"job": "train"}')
    (tmp_path / "hosts.txt").write_text("node1\n")
    monkeypatch.chdir(tmp_path)
    assert hosts_file_of("") == Path("hosts.txt")


def test_a_record_that_another_user_left_in_a_parent_folder_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "job.json").write_text(json.dumps(RECORD))
    (project / "hosts.txt").write_text("node1\n")
    monkeypatch.chdir(project)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert hosts_file_of("") == Path("hosts.txt")
