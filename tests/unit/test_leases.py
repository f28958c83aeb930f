"""Leases of a launch: what it wants of each host, the variables of its ranks, and all hosts or none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.command import Command, Exit, execute
from muster.deploy.cli.commands import load
from muster.deploy.cli.inventory import OnDrained, inventory_or_this_machine
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.connect.requests import Request
from muster.deploy.core.errors import UnfitError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.feature import Start
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.spec import LaunchSpec
from muster.deploy.core.timings import Timings
from muster.deploy.features.all_features import changing
from muster.deploy.features.check.command import Check
from muster.deploy.features.leases import drained
from muster.deploy.features.leases import driver as leasing
from muster.deploy.features.leases.command import Free, HostsDrain, HostsUndrain, free_table
from muster.deploy.features.leases.drained import Drained
from muster.deploy.features.leases.driver import Leases
from muster.deploy.features.leases.messages import LEASE, LEASES, Device, HostLeases, Lease
from muster.deploy.features.leases.on_host import claims, leases
from muster.deploy.features.leases.plan import (
    ALSO_CHOOSING,
    CHOOSING,
    NO_GPUS,
    WITHOUT_LIMIT,
    LeaseOptions,
    LeaseRequest,
    lease_request,
    visible,
)
from muster.deploy.features.slurm.options import AllocationOptions
from tests.unit.attempts import drop
from tests.unit.plans import NODE, make_plan, request_of

GPUS = replace(NODE, gpus=8, devices=8)
JOB = "20261126-080000-00{:02x}"


def spec(text: str = "node1 slots=4", **more: Any) -> LaunchSpec:
    return request_of(job=more.pop("job", JOB.format(1)), hosts=hostfile.parse(text), **more)


def lease(*numbers: int, **more: Any) -> Lease:
    got = tuple(Device(number, f"GPU-{number}") for number in numbers)
    return Lease(**{"kind": "nvidia", "ready": True, "all": 8, "mig": False, "got": got, "taken": (), **more})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, LeaseRequest(4)),
        ({"gpus": 6}, LeaseRequest(6)),
        ({"env": (("CUDA_VISIBLE_DEVICES", "2,3"),)}, LeaseRequest(0, "2,3")),
        ({"env": (("ROCR_VISIBLE_DEVICES", "2,3"),)}, LeaseRequest(0, "2,3")),
        ({"env": NO_GPUS}, None),
    ],
)
def test_a_job_wants_gpus_as_it_says(request_: dict[str, Any], expected: LeaseRequest | None) -> None:
    made = spec(**request_)
    assert lease_request(made, 4, GPUS) == expected


def test_slurm_leases_the_gpus_of_its_hosts_itself() -> None:
    allocated = spec().having(AllocationOptions("17"))
    leases = [[type(each) is Leases for each in changing(job)] for job in (spec(), allocated)]
    assert [any(each) for each in leases] == [True, False]


def test_a_host_without_gpus_is_asked_for_none() -> None:
    assert lease_request(spec(), 4, NODE) is None


SEES_1 = {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("env", "leased", "expected"),
    [
        ((), lease(2, 5), {"CUDA_VISIBLE_DEVICES": "2,5", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ((), lease(2, mig=True), {"CUDA_VISIBLE_DEVICES": "GPU-2"}),
        ((("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),), lease(2), {"CUDA_VISIBLE_DEVICES": "GPU-2"}),
        ((), lease(0, 1, kind="amd"), {"HIP_VISIBLE_DEVICES": "0,1"}),
        ((), lease(4, kind="ascend"), {"ASCEND_RT_VISIBLE_DEVICES": "4"}),
        ((("CUDA_VISIBLE_DEVICES", "1"),), lease(1), {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ((("HIP_VISIBLE_DEVICES", "1"),), lease(1), {**SEES_1, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ((("ROCR_VISIBLE_DEVICES", "1"),), lease(1, kind="amd"), {}),
        ((("CUDA_VISIBLE_DEVICES", "1"),), lease(1, kind="ascend"), {"ASCEND_RT_VISIBLE_DEVICES": "1"}),
        ((("CUDA_VISIBLE_DEVICES", "1"), ("CUDA_DEVICE_ORDER", "FASTEST_FIRST")), lease(1), {}),
        ((), lease(), {}),
    ],
)
def test_ranks_see_the_leased_gpus_in_the_order_of_their_local_ranks(
    env: tuple[tuple[str, str], ...], leased: Lease, expected: dict[str, str]
) -> None:
    assert visible(spec(env=env), leased) == expected


@pytest.mark.parametrize("name", [*CHOOSING, *ALSO_CHOOSING])
def test_a_number_of_gpus_and_a_choice_of_gpus_exclude_each_other(name: str) -> None:
    for setting in (name, f"{name}=3"):
        with pytest.raises(UsageError, match=f"--gpus and --env {name} exclude each other"):
            LeaseOptions(gpus=1).check({"gpus": 1, "env": ("A=1", setting)})


def test_two_choices_of_gpus_are_the_same() -> None:
    given = {"env": ("HIP_VISIBLE_DEVICES=1", "ROCR_VISIBLE_DEVICES=0")}
    LeaseOptions().check({**given, "slurm": "here"})
    LeaseOptions().check({"env": ("CUDA_VISIBLE_DEVICES=1", "HIP_VISIBLE_DEVICES=1")})
    with pytest.raises(
        UsageError, match="HIP_VISIBLE_DEVICES and --env ROCR_VISIBLE_DEVICES choose different"
    ):
        LeaseOptions().check(given)


def test_the_plan_has_the_variables_and_the_users_own_win() -> None:
    plan = make_plan("node1 slots=2", leases={"node1": lease(2, 5)})
    assert plan.hosts[0].env["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert "env CUDA_VISIBLE_DEVICES=2,5" in str(plan)


def test_the_likely_gpu_of_a_rank_is_the_leased_one_of_its_local_rank() -> None:
    plan, chosen = make_plan("node1 slots=3"), make_plan("node1 slots=3", leases={"node1": lease(2, 5)})
    assert list(map(chosen.gpu_of, plan.ranks)) == [2, 5, 2]
    assert list(map(plan.gpu_of, plan.ranks)) == [0, 1, 2]


@pytest.mark.parametrize("text", ["-1", "four", "8@node1", "99999", "٤"])
def test_a_wrong_number_of_gpus_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write a number of GPUs for each host: 4"):
        load("launch").made({"--gpus": text})


def test_gpus_on_any_host_were_removed() -> None:
    with pytest.raises(UsageError, match="8@any: @any was removed: use the number of GPUs for each host"):
        load("launch").made({"--gpus": "8@any"})


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("30", 30.0), (WITHOUT_LIMIT, None)])
def test_wait_takes_seconds_or_no_value(text: str, seconds: float | None) -> None:
    made = load("launch").made({"--wait": text})
    assert isinstance(made, LaunchOptions)
    assert made.wait == seconds


# -- several hosts --


class Host:
    """Stands for the connection to a host: an agent of each job in this process."""

    def __init__(self, agent: leases.Leases, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host, self._agent, self._folder, self._patch = name, agent, folder, patch

    def post(self, request: Request[Any], **fields: Any) -> Future[Any]:
        self._patch.setattr(claims, "WITHOUT_SETUP", str(self._folder))
        done: Future[Any] = Future()
        done.set_result(request.read(getattr(self._agent, f"do_{request.name}")(fields, b"")))
        return done

    def wait(self, answer: Future[Any], seconds: float, began: float) -> Any:
        return answer.result()


class Hosts:
    """Three hosts with four GPUs each, and jobs on them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self._agents: list[leases.Leases] = []
        self.text = "".join(f"node{number} slots=4\n" for number in (1, 2, 3))
        for number in (1, 2, 3):
            (folder / f"node{number}").mkdir()

    def job(self, number: int, text: str = "", **more: Any) -> leasing.LeaseRequests:
        made = spec(text or self.text, job=JOB.format(number), **more)
        channels: dict[str, Any] = {}
        for host in made.hosts:
            self._agents.append(agent := leases.Leases())
            channels[host.name] = Host(agent, host.name, self._folder / host.name, self._patch)
        cluster: Any = type("Cluster", (), {})()
        cluster.channels, cluster.facts = channels, dict.fromkeys(channels, replace(GPUS, devices=4))
        waiting = leasing.LeaseRequests(Start(made, place_ranks(made.hosts, made), drop, Timings()), cluster)
        waiting.channels = channels  # type: ignore[attr-defined]
        return waiting

    def end(self, job: leasing.LeaseRequests) -> None:
        job._end(job._requests)

    def close(self) -> None:
        for agent in self._agents:
            agent.close()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    listed = [leases.Device(number, f"GPU-{number}") for number in range(4)]
    monkeypatch.setattr(leases, "look", lambda: leases.Devices("nvidia", listed))
    monkeypatch.setattr(claims, "SETUP", str(tmp_path / "none"))
    monkeypatch.setattr(leasing, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(leasing, "POLL_SECONDS", 0.001)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Hosts(tmp_path, monkeypatch)
    yield made
    made.close()


def taken(leases: Mapping[str, Lease]) -> dict[str, int]:
    return {host: len(each.got) for host, each in leases.items()}


def test_a_refused_job_keeps_no_gpu_of_any_host(hosts: Hosts) -> None:
    hosts.job(1, "node2 slots=4", gpus=1).take()
    with pytest.raises(UnfitError, match=r"node2: 4 GPUs wanted, 3 free: GPU 0: job \S+ of \S+.*--wait"):
        hosts.job(2, gpus=4).take()
    hosts.close()
    assert taken(hosts.job(3, gpus=4).take()) == {"node1": 4, "node2": 4, "node3": 4}


def test_a_host_with_too_few_gpus_is_never_waited_for(hosts: Hosts) -> None:
    with pytest.raises(UnfitError, match="it has 4 GPUs, and the job wants 5"):
        hosts.job(1, gpus=5, wait=None).take()


def test_two_jobs_that_come_to_the_hosts_in_different_orders_agree_on_one(hosts: Hosts) -> None:
    """Each is first on a host. If that counted, both would wait without end."""
    running = hosts.job(1, "node1 slots=1\nnode2 slots=1")
    running.take()
    one, other = hosts.job(2, gpus=4, wait=None), hosts.job(3, gpus=4, wait=None)
    for job, host in ((one, "node1"), (other, "node2"), (other, "node1"), (one, "node2")):
        fields: Any = {"job": job._spec.job, "user": "", "queued": 0.0, "take": False}
        job._cluster.channels[host].post(LEASE, **fields, gpus=4, chosen=None)
    for job in (one, other, other, one):
        assert job._try() is None
    hosts.end(running)
    ready = [job for job in (one, other) if job._try()]
    assert len(ready) == 1
    assert [job for job in (one, other) if job._try()] == ready
    hosts.end(ready[0])
    assert ({one, other} - {*ready}).pop()._try()


def test_the_last_date_of_arrival_counts_on_every_host(hosts: Hosts) -> None:
    running = hosts.job(1)
    running.take()
    job = hosts.job(2, gpus=4)
    for _ in range(3):
        assert job._try() is None
    dates = {lease.arrived for lease in job._answers.values()}
    assert dates == {job._queued}
    assert hosts.job(3, gpus=4)._queued == 0.0, "the clock of the driver does not count"


def test_a_launch_notes_other_users() -> None:
    answers = {"node1": lease(beside=("ann", "bob")), "node2": lease(beside=("ann", "bob")), "node3": lease()}
    assert leasing._notes(answers) == [
        "note: node[1-2]: other users lease GPUs there too, in /tmp: ann, bob; let `muster setup` make a "
        "folder for that"
    ]


def test_what_a_look_shows_is_not_kept(hosts: Hosts) -> None:
    assert taken(hosts.job(1, gpus=4).look()) == {"node1": 4, "node2": 4, "node3": 4}
    assert hosts.job(2, gpus=4).take()


# -- the table --


def test_the_table_shows_whose_each_gpu_is_and_for_how_long() -> None:
    holder = {"user": "alice", "job": JOB.format(1), "since": 9_400.0}
    gpus = [
        {"index": number, "name": f"GPU-{number}", **(holder if number < 2 else {})} for number in range(4)
    ]
    gpus[3] |= {"user": "bob", "process": "process 812 python"}
    waiting = [{"user": "carol", "job": JOB.format(2), "since": 9_940.0, "number": 4}]
    found = LEASES.read({"kind": "nvidia", "gpus": gpus, "waiting": waiting, "problem": ""})
    lines = free_table(hostfile.parse("node1 slots=4"), {"node1": found}, 10_000.0)
    shown = [line.replace(time.strftime("%H:%M", time.localtime(9_400.0)), "HH:MM") for line in lines]
    assert shown == [
        "host   what      state   user   job                   since  for",
        "node1  GPUs 0-1  leased  alice  20261126-080000-0001  HH:MM  10 min 0 s",
        "node1  GPU 2     free    -      -                     -      -",
        "node1  GPU 3     in use  bob    process 812 python    -      -",
        "node1: 1. in the queue: job 20261126-080000-0002 of carol, waits for 4 devices for 1 min 0 s",
    ]


def test_the_table_says_that_a_host_has_no_gpu() -> None:
    lines = free_table(hostfile.parse("node1 slots=3"), {"node1": HostLeases("none", (), ())}, 0.0)
    assert [line.split()[:3] for line in lines[1:]] == [["node1", "no", "GPU"]]


# -- drained hosts: the record, which hosts a command gets, and what the user reads --


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


def test_a_drained_host_is_named_with_user_and_reason(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_launch_leaves_drained_hosts_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_drained_host_that_is_silent_is_no_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("localhost slots=2\nnode2.invalid slots=8\n")
    with pytest.raises(Exit) as raised:
        execute(Free())
    assert raised.value.code == 3
    drained.change(file, lambda entries: (replace(FAN, host="node2.invalid"),))
    capsys.readouterr()
    out = run(Free(), capsys)
    assert "node2.invalid is drained since 1970-01-12" in out
    assert "localhost" in out
