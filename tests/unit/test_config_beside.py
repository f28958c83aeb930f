"""Whose SSH configuration is used: it can run commands, so nobody else may have written it."""

from __future__ import annotations

import grp
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.dispatch import run
from muster.deploy.cli.project import project_of
from muster.deploy.cli.shared import RecordOptions, hosts_file_of
from muster.deploy.core.connect import opener, ownership
from muster.deploy.core.connect.opener import config_beside, pythons_beside
from muster.deploy.core.connect.ownership import is_private, require_own, within
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.features.setup import command as playbooks
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
def test_this_machine_has_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_project_with_a_job_json_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text('{"job": "train"}')
    (tmp_path / "hosts.txt").write_text("node1\n")
    monkeypatch.chdir(tmp_path)
    assert hosts_file_of("") == Path("hosts.txt")


def test_another_users_record_above_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "job.json").write_text(json.dumps(RECORD))
    (project / "hosts.txt").write_text("node1\n")
    monkeypatch.chdir(project)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert hosts_file_of("") == Path("hosts.txt")


# -- whatever can run a command on this machine is the user's own, or it is refused before it is read --


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_group_of_one_may_write_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make(tmp_path / "file")
    file.chmod(0o664)
    user = pwd.getpwuid(os.geteuid())
    for name, members, private in (
        (user.pw_name, [], True),
        (user.pw_name, [user.pw_name], True),
        (user.pw_name, ["eve"], False),
        ("users", [], False),
    ):
        group = grp.struct_group((name, "x", user.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert is_private(file.stat().st_gid) == private
        if private:
            require_own([file], "")
        else:
            with pytest.raises(UsageError, match="others may write to it, and why; do: chmod go-w"):
                require_own([file], "why")


def test_every_file_is_named_up_to_ten(tmp_path: Path) -> None:
    for number in range(15):
        make(tmp_path / "group_vars" / str(number)).chmod(0o666)
    with pytest.raises(UsageError) as refused:
        require_own(within(tmp_path / "group_vars"), "why")
    assert len(str(refused.value).splitlines()) == 11 and str(refused.value).endswith("and 5 more")


@pytest.mark.parametrize("place", ["group_vars/all.yml", "host_vars/node1/x.json", "group_vars"])
def test_the_variables_beside_a_hosts_file_are_the_users_own(place: str, tmp_path: Path) -> None:
    hosts = make(tmp_path / "hosts.txt", "node1\n")
    for name in ("group_vars/all.yml", "host_vars/node1/x.json"):
        make(tmp_path / name, "x: \"{{ lookup('pipe', 'touch owned') }}\"\n")
    playbooks._require_own_variables(hosts.parent)
    path = tmp_path / place
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(UsageError, match=rf"{place}: others may write to it, and Ansible's lookups"):
        playbooks._require_own_variables(hosts.parent)


@AS_ROOT
def test_a_folder_of_variables_of_another_user_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "group_vars" / "all.yml")
    os.chown(tmp_path / "group_vars", 12345, 12345)
    with pytest.raises(UsageError, match="group_vars: belongs to 12345, and Ansible's lookups run commands"):
        playbooks._require_own_variables(tmp_path)


@pytest.mark.parametrize("place", ["group_vars/all.yml", ".muster/ssh_config"])
def test_a_playbook_is_not_started_with_what_others_wrote(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = make(tmp_path / "hosts.txt", "node1\n")
    make(tmp_path / place).chmod(0o666)
    (tmp_path / place).parent.chmod(0o755)
    monkeypatch.setattr(os, "execve", lambda *words: pytest.fail("started"))
    monkeypatch.setattr(playbooks, "_ansible_playbook", lambda *words: pytest.fail("started"))
    monkeypatch.setattr(ownership, "is_private", lambda group: True)
    assert run(["setup", "--hosts", str(hosts)]) == 2
    assert "others may write to it" in capsys.readouterr().err
