"""Drained hosts: the record, which hosts a command gets, and what the user reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.cli.command import Command, Exit, execute
from muster.deploy.cli.inventory import OnDrained, inventory_or_this_machine
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.check.command import Check
from muster.deploy.features.leases import drained
from muster.deploy.features.leases.command import Free
from muster.deploy.features.leases.command_drain import HostsDrain, HostsUndrain
from muster.deploy.features.leases.drained import Drained
from muster.deploy.features.leases.free import free_table
from muster.deploy.features.leases.messages import Device, HostLeases

FAN = Drained("node2", "alice", 1_000_000.0, "fan broken")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("hosts.txt").write_text("node1 slots=8\nnode2 slots=8\nnode3\n")
    return tmp_path / "hosts.txt"


def run(command: Command, capsys: pytest.CaptureFixture[str]) -> str:
    execute(command)
    return capsys.readouterr().out


def chosen(which: OnDrained, include: str = "") -> dict[str, int]:
    """The hosts that a command gets, and their slots."""
    with inventory_or_this_machine(Check(include=include), "", None, drained=which) as inventory:
        return {host.name: host.slots for host in inventory.hosts}


def test_a_drained_host_is_named_with_the_user_and_the_reason(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run(HostsDrain(name=("node[1-2]",), why="Xid\n79"), capsys)
    assert [each.partition(" is drained since ")[0] for each in line.splitlines()] == ["node1", "node2"]
    assert line.splitlines()[0].endswith(": Xid 79")
    run(HostsDrain(name=("node2",), why="fan broken"), capsys)
    run(HostsDrain(name=("node2",), why="fan replaced, under test"), capsys)  # replaces the reason
    assert [(entry.host, entry.why) for entry in drained.load(file)] == [
        ("node1", "Xid 79"),
        ("node2", "fan replaced, under test"),
    ]
    assert run(HostsUndrain(name=("node2",)), capsys) == "node2 is back\n"
    assert [entry.host for entry in drained.load(file)] == ["node1"]
    run(HostsUndrain(name=("node1",)), capsys)
    assert drained.load(file) == ()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (HostsDrain(name=("node9",), why="x"), "hosts drain: node9 not in the hosts file, which has node1"),
        (HostsUndrain(name=("node1",)), "node1 is not drained; drained are node3"),
        (HostsUndrain(name=("node[1-3]",)), "node1 is not drained; drained are node3"),
    ],
)
def test_a_mistake_changes_nothing(command: Command, error: str, file: Path) -> None:
    before = drained.change(file, lambda entries: (replace(FAN, host="node3"),))
    with pytest.raises(Exit) as raised:
        execute(command)
    assert (raised.value.code, error in str(raised.value)) == (2, True)
    assert drained.load(file) == before


def test_a_damaged_record_is_an_error_and_not_an_empty_one(file: Path) -> None:
    for text in ("", "[{}]", '[{"host": "node1", "by": 3, "at": 1.0, "why": ""}]', "[" * 100_000):
        file.with_name(drained.FILE).write_text(text)
        with pytest.raises(UsageError, match=r"drained\.json is damaged .* drain the hosts again"):
            drained.load(file)
        with pytest.raises(UsageError, match="is damaged"):
            chosen("leave out")


def test_a_launch_leaves_drained_hosts_out_and_a_check_takes_those_that_are_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drained.change(file, lambda entries: (FAN,))
    assert chosen("leave out") == {"node1": 8, "node3": 1}
    notes = capsys.readouterr().err
    assert "note: node2 is drained since 1970-01-12" in notes
    assert "by alice: fan broken\n" in notes
    assert chosen("leave out", "node[1-2]") == {"node1": 8}
    assert chosen("leave out unless named") == {"node1": 8, "node3": 1}
    assert chosen("leave out unless named", "node2") == {"node2": 8}
    assert chosen("keep") == {"node1": 8, "node2": 8, "node3": 1}
    with pytest.raises(
        UsageError, match=r"fan broken; no host is left\. Take one back: muster hosts undrain node2"
    ):
        chosen("leave out", "node2")


def test_the_table_of_free_gpus_shows_who_drained_the_host() -> None:
    devices = (Device(0, "GPU-0"), Device(1, "GPU-1", "ann", "J"))
    (host,) = hostfile.parse("node2 slots=2")
    lines = free_table([host], {"node2": HostLeases("nvidia", devices, ())}, 1_000_060.0, (FAN,))[1:]
    rows = [line.split() for line in lines]
    assert [row[:5] for row in rows] == [
        ["node2", "GPU", "0", "drained", "alice"],
        ["node2", "GPU", "1", "leased", "ann"],
    ]


def test_a_drained_host_that_does_not_answer_is_no_error_of_free(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("localhost slots=2\nnode2.invalid slots=8\n")
    with pytest.raises(Exit) as raised:
        execute(Free())
    assert raised.value.code == 3
    drained.change(file, lambda entries: (replace(FAN, host="node2.invalid"),))
    capsys.readouterr()
    out = run(Free(), capsys)
    assert "node2.invalid is drained since 1970-01-12" in out
    assert "localhost" in out
