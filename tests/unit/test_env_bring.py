"""What a launch does with the packages that it asks for, without a host."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.connect.reports import Event, FileGot, Report
from muster.deploy.core.connect.requests.request import Nothing, Request
from muster.deploy.core.content import tree_transfer
from muster.deploy.core.content.messages import BLOB_COMPLETE, BLOB_PULL, BLOB_SERVE, FilesServed
from muster.deploy.core.errors import UnfitError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import minor
from muster.deploy.core.plan.launch_plan import Contribution
from muster.deploy.features.packages import bring
from muster.deploy.features.packages.bring import PackageDelivery
from muster.deploy.features.packages.driver import Packages
from muster.deploy.features.packages.messages import (
    ENVIRONMENT_MAKE,
    ENVIRONMENTS,
    Environment,
    EnvironmentMade,
    HostEnvironments,
)
from muster.deploy.features.packages.package_request import Requirements
from tests.packages import make_wheel, require
from tests.unit.plans import NODE, make_plan

MADE = Environment(
    executable="/home/ml/.muster/envs/x/bin/python",
    python="3.13.5",
    torch=None,
    mpi4py=None,
    mpirun=None,
    mpi=None,
    source="requirements.txt",
    packages=1,
    bytes=5,
    used=0.0,
)


class Channel:
    """A host that makes what it is asked to make, or says why it cannot."""

    greeted = remote = True
    ended = False

    def __init__(self, host: str, events: Inbox, home: str, refusal: str = "") -> None:
        self.host, self._events, self.home, self.refusal = host, events, home, refusal
        self.made: dict[str, Environment] = {}
        self.asked: list[str] = []
        self.brought = 0

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        self.asked.append(request.name)
        future: Future[Any] = Future()
        answer: Any = Nothing()
        if request is ENVIRONMENTS:
            answer = HostEnvironments(self.home, "x86_64", "2.41", "", dict(self.made))
        elif request is BLOB_SERVE:
            answer = FilesServed(20123, ("10.0.0.1",), {}, "ef" * 16)
        elif request in {BLOB_COMPLETE, BLOB_PULL}:
            self.report(FileGot(words["digest"]))
        elif request is ENVIRONMENT_MAKE:
            if not self.refusal:
                self.made[words["key"]] = MADE
            self.report(EnvironmentMade(1.0, None if self.refusal else MADE, self.refusal))
        self.brought += len(payload)
        future.set_result(answer)
        return future

    def ask(self, request: Request[Any], payload: bytes = b"", *, seconds: float = 0.0, **words: Any) -> Any:
        return self.post(request, payload, **words).result()

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result()

    def report(self, report: Report) -> None:
        self._events.put(Event(self.host, report), wait=False)

    def silent_for(self) -> float:
        return 0.0

    def excuse_silence(self) -> None:
        """The driver did not run for a while, as on a busy machine."""


def cluster_of(homes: list[str], refusals: dict[str, str] | None = None) -> Any:
    events = Inbox()
    names = [f"node{number}" for number, _ in enumerate(homes, 1)]
    channels = {
        name: Channel(name, events, home, (refusals or {}).get(name, ""))
        for name, home in zip(names, homes, strict=True)
    }
    cluster: Any = Listener(events, cast(Any, channels))
    cluster.hosts = hostfile.parse("\n".join(names))
    cluster.facts = dict.fromkeys(names, NODE)
    cluster.data_addresses = cluster.peer_addresses = lambda host: []
    return cluster


@pytest.fixture
def asked(tmp_path: Path) -> Requirements:
    make_wheel(tmp_path / "wheels", "greeting")
    return Requirements(require(tmp_path, "greeting"), torch_backend="none")


def bringing(asked: Requirements, said: list[str] | None = None, **choices: Any) -> PackageDelivery:
    tell = (said if said is not None else []).append
    launcher = choices.pop("launcher", "mpirun")
    return PackageDelivery(asked, launcher, asked.file.parent / "cache", tell, **choices)


APART = ["aa" * 16, "bb" * 16, "cc" * 16]


def test_hosts_that_lack_the_packages_get_them_and_this_machine_sends_each_file_once(
    asked: Requirements,
) -> None:
    cluster, said = cluster_of(APART), list[str]()
    first = bringing(asked, said)
    facts = first.provide(cluster)
    assert {known.executable for known in facts.values()} == {MADE.executable}
    assert {known.mpirun for known in facts.values()} == {NODE.mpirun}
    assert sum(channel.brought > 1 << 20 for channel in cluster.channels.values()) == 1
    assert "node1: 1 package, made in 1.0 s" in said
    again = bringing(asked)
    assert again.provide(cluster) == facts
    assert all(channel.asked[-1] == "envs" for channel in cluster.channels.values())
    assert again.described == first.described.replace("get them", "have them")
    assert Packages(first.key, "").provide(cluster) == facts


def test_hosts_that_share_a_home_make_it_once(asked: Requirements) -> None:
    cluster = cluster_of(["aa" * 16, "aa" * 16, "cc" * 16])
    assert len(bringing(asked).provide(cluster)) == 3
    making = [name for name, channel in cluster.channels.items() if "env_make" in channel.asked]
    assert making == ["node1", "node3"]


def test_the_words_of_every_host_that_cannot_make_it_are_quoted(asked: Requirements) -> None:
    cluster = cluster_of(APART, {"node2": "Failed to build `broken==1`", "node3": "no space left"})
    with pytest.raises(UnfitError) as failed:
        bringing(asked).provide(cluster)
    assert str(failed.value).splitlines() == [
        "node2: cannot make the environment: Failed to build `broken==1`",
        "node3: cannot make the environment: no space left",
    ]


def test_a_host_that_never_makes_it_is_named(asked: Requirements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring, "MAKE_SECONDS", 0.2)
    monkeypatch.setattr(tree_transfer, "HEAR_SECONDS", 0.1)
    cluster = cluster_of(APART)
    says, node2 = cluster.channels["node2"].report, cluster.channels["node2"]
    node2.report = lambda report: None if isinstance(report, EnvironmentMade) else says(report)
    with pytest.raises(UnfitError) as failed:
        bringing(asked).provide(cluster)
    assert str(failed.value) == "node2: cannot make the environment: not done after 0 s"


def test_a_dry_run_asks_and_makes_nothing(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    dry = bringing(asked, dry=True)
    facts = dry.provide(cluster)
    assert {known.executable for known in facts.values()} == {
        f"{NODE.home}/.muster/envs/{dry.key}/bin/python"
    }
    assert {word for channel in cluster.channels.values() for word in channel.asked} == {"envs"}


def test_torchrun_needs_torch_among_the_packages_or_the_hosts_own(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    cluster.facts = {**cluster.facts, "node2": replace(NODE, torch=None)}
    with pytest.raises(UsageError, match="names no torch, which torchrun needs, and the hosts do not have"):
        bringing(asked, launcher="torchrun").provide(cluster)


def test_packages_that_need_no_torch_leave_the_ranks_the_torch_of_the_hosts(asked: Requirements) -> None:
    dry = bringing(asked, launcher="torchrun", dry=True)
    assert {known.torch for known in dry.provide(cluster_of(APART)).values()} == {NODE.torch}
    assert "torch of the hosts" in dry.described
    cluster, making = cluster_of(APART), bringing(asked)
    making.provide(cluster)
    assert making.key == dry.key
    other = bringing(replace(asked, python=minor(NODE.python)), dry=True)
    assert {known.torch for known in other.provide(cluster_of(APART)).values()} == {None}


def test_a_restart_says_which_host_has_lost_the_environment(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    first = bringing(asked)
    first.provide(cluster)
    cluster.channels["node2"].made.clear()
    with pytest.raises(UnfitError, match=f"node2: its environment {first.key} is gone; launch again"):
        Packages(first.key, "").provide(cluster)


def test_programs_of_the_environment_come_before_those_of_the_host() -> None:
    inside = {"node1": {"executable": MADE.executable}}
    added = Contribution(path=("/home/ml/.muster/envs/x/bin",), about=("packages: 12 packages",))
    plan = make_plan("node1 slots=2", facts=inside, added=added)
    (host,) = plan.hosts
    assert host.path[1:] == ("/home/ml/.muster/envs/x/bin", "/usr/bin")
    assert "\npackages: 12 packages\n" in str(plan)
    assert make_plan("node1 slots=2").hosts[0].path[1:] == ("/usr/bin",)
