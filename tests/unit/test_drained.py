"""Drained hosts and GPUs: the record, which hosts a command gets, and what the user reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy.cli.check import Check
from muster.deploy.cli.command import Command, Exit, execute
from muster.deploy.cli.drain import HostsDrain, HostsDrained, HostsUndrain
from muster.deploy.cli.free import Free
from muster.deploy.cli.inventory import OnDrained, inventory_or_this_machine
from muster.deploy.errors import UsageError
from muster.deploy.hosts import drained, hostfile
from muster.deploy.hosts.drained import Drained
from muster.deploy.hosts.leases import Device, HostLeases, Lease
from muster.deploy.hosts.slots import counted_slots
from muster.deploy.jobs.free import free_table
from muster.deploy.plan.leases import Wish, impossible, wish
from muster.deploy.plan.spec import LaunchSpec
from tests.unit.plans import NODE

FAN = Drained("node2", None, "alice", 1_000_000.0, "fan broken")
XID = Drained("node1", 3, "bob", 1_000_000.0, "Xid 79")
GPUS = replace(NODE, gpus=8, devices=8)


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
    line = run(HostsDrain(name=("node[1-2]",), gpu=("3",), why="Xid\n79"), capsys)
    assert [each.partition(" is drained since ")[0] for each in line.splitlines()] == [
        "GPU 3 of node1",
        "GPU 3 of node2",
    ]
    assert line.splitlines()[0].endswith(": Xid 79")
    run(HostsDrain(name=("node2",), why="fan broken"), capsys)
    run(HostsDrain(name=("node2",), why="fan replaced, under test"), capsys)  # replaces the reason
    entries = json.loads(run(HostsDrained(json=True), capsys))
    assert [(entry["host"], entry["gpu"], entry["why"]) for entry in entries] == [
        ("node1", 3, "Xid 79"),
        ("node2", 3, "Xid 79"),
        ("node2", None, "fan replaced, under test"),
    ]
    assert run(HostsUndrain(name=("node2",)), capsys) == "GPU 3 of node2 is back\nnode2 is back\n"
    assert [entry.what for entry in drained.load(file)] == ["GPU 3 of node1"]
    run(HostsUndrain(name=("node1",), gpu=("3",)), capsys)
    assert run(HostsDrained(), capsys) == "no host is drained\n"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (HostsDrain(name=("node9",), why="x"), "hosts drain: node9 not in the hosts file, which has node1"),
        (HostsDrain(name=("node1",), gpu=("x",), why="x"), "--gpu x: write the number of a GPU, from 0 to"),
        (HostsUndrain(name=("node1",)), "node1 is not drained; drained are GPU 3 of node3"),
        (
            HostsUndrain(name=("node3",), gpu=("3", "4")),
            "GPU 4 of node3 is not drained; drained are GPU 3 of node3",
        ),
        (
            HostsUndrain(name=("node3",), gpu=("4",)),
            "GPU 4 of node3 is not drained; drained are GPU 3 of node3",
        ),
    ],
)
def test_a_mistake_changes_nothing(command: Command, error: str, file: Path) -> None:
    before = drained.change(file, lambda entries: (replace(XID, host="node3"),))
    with pytest.raises(Exit) as raised:
        execute(command)
    assert (raised.value.code, error in str(raised.value)) == (2, True)
    assert drained.load(file) == before


def test_a_damaged_record_is_an_error_and_not_an_empty_one(file: Path) -> None:
    for text in ("", "[{}]", '[{"host": "node1", "gpu": "3", "by": "a", "at": 1.0, "why": ""}]'):
        file.with_name(drained.FILE).write_text(text)
        with pytest.raises(UsageError, match=r"drained\.json is damaged .* drain the hosts again"):
            drained.load(file)
        with pytest.raises(UsageError, match="is damaged"):
            chosen("leave out")


def test_a_launch_leaves_drained_hosts_out_and_a_check_takes_those_that_are_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drained.change(file, lambda entries: (FAN, XID))
    assert chosen("leave out") == {"node1": 7, "node3": 1}
    notes = capsys.readouterr().err
    assert "note: node2 is drained since 1970-01-12" in notes
    assert "by alice: fan broken\n" in notes
    assert chosen("leave out", "node[1-2]") == {"node1": 7}
    assert chosen("leave out unless named") == {"node1": 7, "node3": 1}
    assert chosen("leave out unless named", "node2") == {"node2": 8}
    assert chosen("keep") == {"node1": 8, "node2": 8, "node3": 1}
    with pytest.raises(
        UsageError, match=r"fan broken; no host is left\. Take one back: muster hosts undrain node2"
    ):
        chosen("leave out", "node2")


def test_a_drained_gpu_takes_a_slot_and_the_last_one_takes_the_host() -> None:
    hosts = hostfile.parse("node1 slots=2\nnode2\n")
    both = (replace(XID, gpu=0), replace(XID, gpu=1), replace(XID, host="node2"))
    left, entries = drained.usable(hosts, both)
    assert [(host.name, host.slots, host.drained_gpus) for host in left] == [("node2", 1, (3,))]
    assert entries == both
    counted, errors = counted_slots(left, {"node2": GPUS}, "gpus")
    assert (counted[0].slots, errors) == (7, {})
    assert counted_slots(left, {"node2": GPUS}, 8)[0][0].slots == 7


def test_a_job_wants_no_drained_gpu() -> None:
    (host,), _ = drained.usable(hostfile.parse("node1 slots=8"), (XID,))
    job = LaunchSpec(job="20261126-080000-0001", hosts=(host,))
    assert wish(job, host, 8, GPUS) == Wish(7, drained=(3,))
    error = impossible(Wish(8, drained=(3,)), Lease("nvidia", False, 7, False, (), ()))
    assert error
    assert error.text == "it has 7 GPUs besides GPU 3, which is drained, and the job wants 8"


def test_the_table_of_free_gpus_shows_who_drained_one() -> None:
    devices = tuple(
        Device(number, f"GPU-{number}", *(("ann", "J") if number > 6 else ())) for number in range(8)
    )
    leases = {"node1": HostLeases("nvidia", devices, ())}
    (host,) = hostfile.parse("node1 slots=8")
    rows = [line.split() for line in free_table([host], leases, 1_000_060.0, (XID,))[1:]]
    assert [row[:4] for row in rows] == [
        ["node1", "GPUs", "0-2,4-6", "free"],
        ["node1", "GPU", "3", "drained"],
        ["node1", "GPU", "7", "leased"],
    ]
    assert rows[1][4:7] == ["bob", "Xid", "79"]
    all_of_it = free_table([host], leases, 1_000_060.0, (replace(FAN, host="node1"),))[1:]
    assert [line.split()[3] for line in all_of_it] == ["drained", "leased"]


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
