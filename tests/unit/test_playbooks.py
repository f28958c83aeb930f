"""The commands that run playbooks: which playbook, on which hosts, with which options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.features.setup import record as setup_record
from muster.deploy.features.setup.command import Setup, Venv, Wheelhouse

KNOWN = {
    "node3": {"user": "ml"},
    "node4": {"user": "ml", "left_out": True},
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


def test_a_limit_takes_hosts_along(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Setup(hosts=str(hosts), limit="node2", dry_run=True)
    added = ["--extra-vars", '{"muster_added": ["node2"]}']
    assert printed(command, capsys) == ["setup.yml", "--limit", "node2", *added]
    record(hosts)
    assert printed(command, capsys) == ["setup.yml", "--limit", "node1,node2,node3", *added]
    with pytest.raises(UsageError, match="--limit: node9 not in the hosts file"):
        Setup(hosts=str(hosts), limit="node9", dry_run=True).run()


def test_hosts_that_left_are_cleaned(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hosts.parent / "group_vars").mkdir()
    variables = hosts.parent / "group_vars" / "cluster.yml"
    variables.write_text("{}")
    expected = ["teardown.yml", "--extra-vars", f"@{variables}", "--extra-vars", "teardown_hosts=node8,node9"]
    assert printed(Setup(hosts=str(hosts), remove="node[8-9]", dry_run=True), capsys) == expected


def test_a_host_of_the_record_that_is_not_in_the_hosts_file_left_it(hosts: Path) -> None:
    folder, listed = hosts.parent / ".muster", {host.name for host in hostfile.load(hosts)}
    assert setup_record.left(folder, listed) == ()
    record(hosts)
    assert setup_record.left(folder, listed) == (Host("node9", user="ml", port=2200),)
    assert setup_record.left(folder, listed | {"node9"}) == ()


@pytest.mark.parametrize("text", ["{", "[1]", '{"node1": 1}', '{"a b": {}}', '{"node9": {"user": "-x"}}'])
def test_a_damaged_record_is_named(hosts: Path, text: str) -> None:
    record(hosts)
    (hosts.parent / ".muster" / "hosts.json").write_text(text)
    with pytest.raises(MusterError, match=r"\.muster/hosts\.json"):
        setup_record.left(hosts.parent / ".muster", {"node1"})


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


def test_every_playbook_named_has_a_command(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled = ["wheelhouse.yml", "--extra-vars", json.dumps({"venv_wheelhouse": "/srv/wheels"})]
    assert printed(Wheelhouse(hosts=str(hosts), folder="/srv/wheels", dry_run=True), capsys) == filled
    assert printed(Venv(hosts=str(hosts), dry_run=True), capsys) == ["venv.yml"]
    gone = ["venv.yml", "--extra-vars", "venv_state=absent"]
    assert printed(Venv(hosts=str(hosts), remove=True, dry_run=True), capsys) == gone
