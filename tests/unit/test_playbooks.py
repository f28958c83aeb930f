"""The commands that run playbooks: which playbook, on which hosts, with which options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from muster.deploy.cli.playbooks import Setup, Venv, Wheelhouse
from muster.deploy.errors import UsageError
from muster.deploy.hosts import hostfile

KNOWN = {
    "node1": {"holds_key": True, "has_firewall": False},
    "node2": {"holds_key": False, "has_firewall": False},
    "node3": {"holds_key": False, "has_firewall": True},
    "node9": {"user": "ml", "ssh_port": 2200},
}


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_text("node[1-4] slots=2\n")
    return path


def record(hosts: Path) -> None:
    (hosts.parent / ".muster").mkdir()
    (hosts.parent / ".muster" / "hosts.json").write_text(json.dumps(KNOWN))


def printed(command: Setup | Wheelhouse | Venv, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The playbook and the options after the inventory."""
    command.run()
    words = shlex.split(capsys.readouterr().out)
    return [Path(words[2]).name, *words[5:]]


def test_a_limit_takes_the_hosts_along_that_have_to_know_the_new_one(
    hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Setup(hosts=str(hosts), limit="node4", dry_run=True)
    assert printed(command, capsys) == ["setup.yml", "--limit", "node4"]
    record(hosts)
    assert printed(command, capsys) == ["setup.yml", "--limit", "node1,node3,node4"]
    with pytest.raises(UsageError, match="--limit: node9 not in the hosts file"):
        Setup(hosts=str(hosts), limit="node9", dry_run=True).run()


def test_a_host_that_left_is_cleaned_with_its_own_user_and_port(
    hosts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(hosts)
    (hosts.parent / "group_vars").mkdir()
    variables = hosts.parent / "group_vars" / "cluster.yml"
    variables.write_text("{}")
    expected = ["teardown.yml", "--extra-vars", f"@{variables}", "--extra-vars", "teardown_hosts=node8,node9"]
    assert printed(Setup(hosts=str(hosts), remove="node[8-9]", dry_run=True), capsys) == expected
    assert hostfile.left_beside(hosts) == ()
    monkeypatch.setattr("os.execve", lambda *_: None)
    for _ in range(2):
        Setup(hosts=str(hosts), remove="node[8-9]").run()
    left = hostfile.left_beside(hosts)
    assert [(host.name, host.user, host.port) for host in left] == [
        ("node8", None, None),
        ("node9", "ml", 2200),
    ]


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("node2", "--remove: node2 still in .*hosts.txt; take the line out of it first"),
        ("node[9", r"--remove node\[9: a range is written"),
        ("all:&x", "--remove:1:1"),
    ],
)
def test_what_cannot_be_removed_is_refused(hosts: Path, remove: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Setup(hosts=str(hosts), remove=remove, dry_run=True).run()
    assert not (hosts.parent / ".muster").exists()


def test_every_playbook_that_a_message_names_has_a_command(
    hosts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = ["wheelhouse.yml", "--extra-vars", json.dumps({"venv_wheelhouse": "/srv/wheels"})]
    assert printed(Wheelhouse(hosts=str(hosts), folder="/srv/wheels", dry_run=True), capsys) == filled
    assert printed(Venv(hosts=str(hosts), dry_run=True), capsys) == ["venv.yml"]
    gone = ["venv.yml", "--extra-vars", "venv_state=absent"]
    assert printed(Venv(hosts=str(hosts), remove=True, dry_run=True), capsys) == gone
