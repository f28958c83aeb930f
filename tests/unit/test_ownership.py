"""Whatever can run a command on this machine is the user's own, or it is refused before it is read."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from muster.deploy.cli.dispatch import run
from muster.deploy.core.connect import ownership
from muster.deploy.core.connect.ownership import is_private, require_own, within
from muster.deploy.core.errors import UsageError
from muster.deploy.features.setup import command as playbooks

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def make(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_private_group_may_write_and_a_group_of_several_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
