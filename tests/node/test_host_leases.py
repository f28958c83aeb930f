"""Leases of a host's GPUs: claims that end with their agents, and a queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.wire.users import name_of
from muster.deploy.features.leases.on_host import claims, leases
from muster.deploy.features.leases.on_host.leases import Device, Devices
from tests.waiting import wait_until

Take = Callable[..., dict[str, Any]]
HOLDS = """
import sys
from muster.deploy.features.leases.on_host import claims, leases
from muster.deploy.features.leases.on_host.leases import Device, Devices
claims.SETUP, claims.WITHOUT_SETUP = "", sys.argv[1]
leases.look = lambda: Devices("nvidia", [Device(number, f"GPU-{number}") for number in range(8)])
print(len(leases.Leases().do_lease(eval(sys.argv[2]), b"")["got"]), flush=True)
sys.stdin.read()
"""
RACES = (
    HOLDS.rpartition("print")[0]
    + """
import os, random
folder, job, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance, got = random.Random(job), 0
for turn in range(rounds):
    agent, number = leases.Leases(), chance.randint(1, 8)
    request = {"user": "", "job": f"{job}-{turn}", "queued": 0.0, "take": True, "gpus": number,
               "chosen": None}
    if agent.do_lease(request, b"")["ready"]:
        names = [device["name"] for device in agent.do_lease(request, b"")["got"]]
        for name in names:  # FileExistsError if another process has it
            os.close(os.open(f"{folder}/has-{name}", os.O_CREAT | os.O_EXCL))
        got += 1
        for name in names:
            os.unlink(f"{folder}/has-{name}")
    agent.close()
print(got)
"""
)


def wanted(job: str, gpus: int, queued: float = 0.0, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"take": True, "chosen": None}
    return {"job": job, "user": "", "gpus": gpus, "queued": queued, **plain, **more}


def numbers(answer: dict[str, Any]) -> list[int]:
    return [device["index"] for device in answer["got"]]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """A host with eight GPUs; a test may change the list."""
    gpus = [Device(number, f"GPU-{number}") for number in range(8)]
    monkeypatch.setattr(claims, "SETUP", str(tmp_path / "none"))
    monkeypatch.setattr(claims, "WITHOUT_SETUP", str(tmp_path))
    monkeypatch.setattr(leases, "look", lambda: Devices("nvidia", gpus))
    monkeypatch.setattr(leases, "FRESH_SECONDS", -1.0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus


@pytest.fixture
def take(host: list[Device]) -> Iterator[Take]:
    """Sends the request of a job to an agent of its own, which lives until the end of the test."""
    agents: dict[str, leases.Leases] = {}

    def ask(job: str, gpus: int, queued: float = 0.0, **more: Any) -> dict[str, Any]:
        agent = agents.setdefault(job, leases.Leases())
        return agent.do_lease(wanted(job, gpus, queued, **more), b"")

    yield ask
    for agent in agents.values():
        agent.close()


def test_two_jobs_get_different_gpus_and_a_third_learns_whose_they_are(take: Take) -> None:
    assert numbers(take("a", 3)) == [0, 1, 2]
    assert numbers(take("b", 3)) == [3, 4, 5]
    refused = take("c", 4)
    assert (refused["ready"], numbers(refused)) == (False, [6, 7])
    holders = {(device["job"], device["index"]) for device in refused["taken"]}
    assert holders == {("a", 0), ("a", 1), ("a", 2), ("b", 3), ("b", 4), ("b", 5)}


def test_a_shared_account_is_shown_with_the_user_who_launched(take: Take) -> None:
    account = name_of(os.getuid())
    for number, user in enumerate(("alice", account, "", "x" * 100)):
        take(f"job-{number}", 1, user=user)
    take("waits", 8, user="bob")
    answer = leases.Leases().do_leases({}, b"")
    shown = [f"alice ({account})", account, account, f"{'x' * claims.MOST_NAME} ({account})"]
    assert [device["user"] for device in answer["gpus"]] == [*shown, "", "", "", ""]
    assert [waiting["user"] for waiting in answer["waiting"]] == [f"bob ({account})"]


def test_a_restart_keeps_its_gpus_and_may_have_more(take: Take) -> None:
    since = take("a", 2)
    assert numbers(since) == numbers(take("a", 2)) == [0, 1]
    assert numbers(take("b", 6)) == [2, 3, 4, 5, 6, 7]
    assert take("a", 3)["ready"] is False
    take("a", 0)
    assert numbers(take("b", 6)) == [2, 3, 4, 5, 6, 7], "not the first ones that are free"
    assert numbers(take("a", 2)) == [0, 1]
    assert [device["job"] for device in leases.Leases().do_leases({}, b"")["gpus"]] == ["a"] * 2 + ["b"] * 6


def test_a_look_locks_nothing(take: Take) -> None:
    assert numbers(take("a", 8, take=False)) == [*range(8)]
    assert take("b", 8)["ready"] is False, "the other job looks, so it waits"


def test_the_first_job_in_the_queue_is_served_first(take: Take) -> None:
    take("a", 6)
    first = take("first", 8)
    assert first["ready"] is False
    late = take("late", 1)
    assert (late["ready"], numbers(late)) == (False, [])
    assert "job first, which waits for it" in late["taken"][-1]["process"]
    assert take("first", 8)["arrived"] == first["arrived"], "to ask again keeps the place"
    assert take("late", 1, queued=first["arrived"] - 99)["ready"] is False, "no driver dates it earlier"
    take("first", 8, queued=time.time() + 99)  # on another host of the job, which it reached later
    assert numbers(take("late", 1)) == [6]


def test_a_job_that_waits_for_other_gpus_blocks_none(take: Take) -> None:
    take("a", 1)
    assert take("first", 0, chosen="0")["ready"] is False
    assert numbers(take("late", 7)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_process_without_a_lease_takes_its_gpu(take: Take, host: list[Device]) -> None:
    host[0] = Device(0, "GPU-0", pids=(os.getppid(),))
    host[1] = Device(1, "GPU-1", pids=(1 << 22,))  # of another container: not to be seen here
    assert numbers(take("a", 6)) == [2, 3, 4, 5, 6, 7]
    refused = take("b", 1)
    assert f"process {os.getppid()}" in refused["taken"][0]["process"]
    assert leases.Leases().do_leases({}, b"")["gpus"][0]["user"]


def test_the_users_own_choice_is_leased(take: Take, host: list[Device]) -> None:
    host[3] = Device(3, "GPU-3", mig=True, parts=("MIG-5a",))
    assert numbers(take("a", 0, chosen="5,GPU-1,MIG-5a")) == [5, 1, 3]
    assert numbers(take("b", 5)) == [0, 2, 4, 6, 7]


def test_a_login_with_some_gpus_leases_only_those(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    assert (numbers(take("a", 2)), take("b", 3)["all"]) == ([6, 7], 2)


def test_the_kernel_frees_everything_of_a_killed_agent(take: Take, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path), repr(wanted("a", 8))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout and agent.stdout.readline() == b"8\n"
        assert take("b", 1)["ready"] is False
        agent.send_signal(signal.SIGKILL)
    assert numbers(take("b", 8)) == [*range(8)]
    wait_until(lambda: len([*tmp_path.glob("muster-claim-*")]) == 1, "the end of the dead claim")


def test_many_processes_never_have_the_same_gpu(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RACES, str(tmp_path)]
    racing = [subprocess.Popen([*words, f"job{n}", "40"], stdout=subprocess.PIPE) for n in range(4)]
    outputs = [process.communicate()[0] for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0, 0]
    assert sum(map(int, outputs)) > 0
    assert [*tmp_path.glob("muster-claim-*")] == []


def test_a_claim_whose_file_is_removed_is_made_again(take: Take, tmp_path: Path) -> None:
    take("a", 3)
    (path,) = tmp_path.glob("muster-claim-*")
    path.unlink()  # by root, or by a program that removes old files of /tmp
    assert numbers(take("a", 3)) == [0, 1, 2]
    assert numbers(take("b", 5)) == [3, 4, 5, 6, 7]


def test_an_agent_keeps_its_claim_file(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "KEEP_SECONDS", 0.01)
    take("a", 3)
    (path,) = tmp_path.glob("muster-claim-*")
    path.unlink()
    wait_until(lambda: [*tmp_path.glob("muster-claim-*")], "the new file")
    assert numbers(take("b", 5)) == [3, 4, 5, 6, 7]


def test_of_two_agents_that_claim_at_once_none_gets_it(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one claims between the look of the first one and its claim."""
    publish, second = claims.OwnClaim.publish, leases.Leases()

    def late(own: claims.OwnClaim, claim: claims.Claim) -> None:
        monkeypatch.setattr(claims.OwnClaim, "publish", publish)
        assert second.do_lease(wanted("second", 2), b"")["ready"]
        publish(own, claim)

    monkeypatch.setattr(claims.OwnClaim, "publish", late)
    first = take("first", 1)
    assert (first["ready"], [device["job"] for device in first["taken"]]) == (False, ["second"])
    assert numbers(take("first", 6)) == [2, 3, 4, 5, 6, 7]
    second.close()


def test_only_root_has_a_folder(host: list[Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "setup"
    made.mkdir()
    monkeypatch.setattr(claims, "SETUP", str(made))
    assert claims.folder() == str(tmp_path)
    if os.getuid() == 0:
        made.chmod(0o1777)
        assert claims.folder() == str(made)


def test_an_older_lease_is_kept(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setup then makes the folder for leases, and the job holds its locks in the other one."""
    assert numbers(take("before", 2)) == [0, 1]
    (tmp_path / "setup").mkdir()
    monkeypatch.setattr(claims, "folder", lambda: str(tmp_path / "setup"))
    assert numbers(take("after", 6)) == [2, 3, 4, 5, 6, 7]
    assert take("more", 1)["ready"] is False
    assert numbers(take("before", 2)) == [0, 1]


def test_mig_instances_belong_to_their_gpu() -> None:
    text = "GPU 0: H (UUID: GPU-a)\n  MIG 1g Device 0: (UUID: MIG-x)\nGPU 1: H (UUID: GPU-b)\n"
    assert leases._mig_parts(text) == {"GPU-a": ("MIG-x",)}


def test_an_agent_that_gave_its_gpus_back_is_no_longer_before_others(take: Take) -> None:
    agent = leases.Leases()
    assert agent.do_lease(wanted("early", 8), b"")["ready"]
    assert take("first", 8)["ready"] is False
    agent.do_lease_end({}, b"")
    assert agent.do_lease(wanted("late", 8), b"")["ready"] is False
    agent.close()
