"""Races for the GPUs of the practice cluster: eight fake ones on each node, and agents of two users.

The jobs of a race have no ranks: they lease as a launch does, through agents that `docker exec` starts, so
that a thousand take less time than fifty launches.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.deploy.core.connect.bootstrap import BOOTSTRAP
from muster.deploy.core.connect.cluster import Cluster as Hosts
from muster.deploy.core.connect.fanout import ask_every
from muster.deploy.core.connect.pipe import LostError, Pipe
from muster.deploy.core.connect.transports.process import LocalPipe, ProcessPipe
from muster.deploy.core.errors import MusterError, UnfitError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job.feature import Start
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.spec import LaunchSpec
from muster.deploy.core.timings import Timings
from muster.deploy.features.leases.driver import LeaseRequests
from muster.deploy.features.leases.messages import LEASE_END, LEASES, Lease
from muster.deploy.features.leases.plan import LeaseOptions
from tests import fake_gpus
from tests.unit.attempts import drop

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

Leases = Mapping[str, Lease]
GPUS, USERS = 8, ("muster", "4321:4321")
SMI, FOLDER = "/usr/bin/nvidia-smi", "/var/tmp"  # of the containers


def give_gpus(cluster: Cluster, *nodes: str) -> None:
    """Give the nodes fake GPUs."""
    devices = " ".join(f"/dev/nvidia{number}" for number in range(GPUS))
    for node in nodes or cluster.nodes:
        words = ("sh", "-c", f"cat >{SMI} && chmod 755 {SMI} && touch {devices}")
        done = cluster.exec(node, words, "root", fake_gpus.text(GPUS, FOLDER, node))
        assert done.returncode == 0, done.stderr


def take_gpus(cluster: Cluster) -> None:
    """Take the fake GPUs away."""
    for node in cluster.nodes:
        words = ("sh", "-c", f"rm -f {SMI} /dev/nvidia[0-9]* /tmp/muster-lease-* {FOLDER}/processes")
        cluster.exec(node, words, "root")


class ExecPipe(ProcessPipe):
    """An agent on a node, by `docker exec`. `mark`: a variable by which to find it there."""

    def __init__(self, container: str, user: str, mark: str) -> None:
        words = (
            "docker",
            "exec",
            "--interactive",
            "--user",
            user,
            "--env",
            "HOME=/tmp",
            "--env",
            f"MARK={mark}",
        )
        super().__init__([*words, container, "python3", "-c", BOOTSTRAP])

    last_words = LocalPipe.last_words


@dataclass
class Ledger:
    """Who has which GPU, as the drivers know it; and the counts of a race."""

    counts: Counter[str] = field(default_factory=Counter)
    overlaps: list[str] = field(default_factory=list)
    granted: list[tuple[float, float]] = field(default_factory=list)
    """For each lease its time, and the time at which its job began to wait."""
    _held: dict[tuple[str, str], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, job: str, queued: float, leases: Leases) -> list[tuple[str, str]]:
        """Note a lease; a GPU that another job has is an overlap."""
        gpus = [(host, device.name) for host, lease in leases.items() for device in lease.got]
        with self._lock:
            self.overlaps += [f"{gpu}: {job} and {self._held[gpu]}" for gpu in gpus if gpu in self._held]
            self._held.update(dict.fromkeys(gpus, job))
            self.granted.append((time.time(), queued))
            self.counts["granted"] += 1
            self.counts["GPUs"] += len(gpus)
        return gpus

    def give_back(self, gpus: list[tuple[str, str]]) -> None:
        """Note the end of a lease, before it ends."""
        with self._lock:
            for gpu in gpus:
                self._held.pop(gpu, None)


class Racer:
    """One driver after the other, with the agents of one user on all nodes."""

    def __init__(self, cluster: Cluster, ledger: Ledger, number: int) -> None:
        self._cluster, self._ledger, self._number = cluster, ledger, number
        self._chance = random.Random(number)  # noqa: S311
        self.hosts = tuple(Host(node, slots=GPUS) for node in cluster.nodes)
        self.agents: Hosts | None = None

    def connected(self) -> Hosts:
        """Its agents; new ones after one was killed."""
        if self.agents is None:
            agents = Hosts(self.hosts, self._open)
            agents.__enter__()
            self.agents = agents
        return self.agents

    def close(self) -> None:
        """End its agents."""
        if self.agents:
            self.agents.close()
            self.agents = None

    def _open(self, host: Host) -> Pipe:
        user = USERS[self._number % len(USERS)]
        return ExecPipe(self._cluster.container(host.name), user, f"{self._number}-{host.name}")

    def lease(self, job: str, spec: LaunchSpec) -> tuple[float, Leases]:
        """Lease what a job wants; returns since when it has waited too."""
        leasing = LeaseRequests(Start(spec, place_ranks(spec.hosts, spec), drop, Timings()), self.connected())
        return time.time(), leasing.take()

    def run(self, jobs: int) -> None:
        """Run jobs one after the other; some wait, and some of their agents are killed."""
        for turn in range(jobs):
            job = f"20261126-{self._number:06d}-{turn:04x}"
            try:
                queued, leases = self.lease(job, self._spec(job))
            except UnfitError:
                self._ledger.counts["refused"] += 1
            else:
                self._hold(job, queued, leases)
            self._end()
        self.close()

    def _spec(self, job: str) -> LaunchSpec:
        chance = self._chance
        hosts = tuple(chance.sample(self.hosts, chance.choice((1, 1, 2, 3))))
        wait = chance.choice((None, 0.0, 0.0, 2.0))
        return LaunchSpec(job=job, hosts=hosts).having(LeaseOptions(chance.choice((1, 2, 4, 8)), wait))

    def _hold(self, job: str, queued: float, leases: Leases) -> None:
        gpus = self._ledger.take(job, queued, leases)
        time.sleep(self._chance.random() * 0.05)
        self._ledger.give_back(gpus)
        if self._chance.random() < 0.02:
            self._kill(self._chance.choice(gpus)[0])

    def _kill(self, node: str) -> None:
        """Kill its agent on a node, which holds GPUs, with SIGKILL."""
        mark = f"{self._number}-{node}"
        find = f"grep -lsz '^MARK={mark}$' /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3"
        done = self._cluster.exec(node, ("sh", "-c", f"kill -9 $({find})"), USERS[self._number % len(USERS)])
        assert done.returncode == 0, done.stderr
        self._ledger.counts["agents killed"] += 1
        self.close()

    def _end(self) -> None:
        """End the leases of a job, as its agents do at its end."""
        if self.agents:
            with suppress(LostError):
                ask_every(self.agents.channels, LEASE_END, 60.0).require_all()


@dataclass
class Race:
    """The result of a race."""

    ledger: Ledger
    seconds: float
    errors: list[str]
    turn: float
    """Seconds until a job got all GPUs that had to wait for them."""
    passed: int
    """The jobs that began to wait after it and got GPUs before it."""


def race(cluster: Cluster, racers: int, jobs: int) -> Race:
    """Let drivers race, and one more job wait for all GPUs of all nodes meanwhile."""
    ledger, errors, began = Ledger(), list[str](), time.monotonic()

    def run(number: int) -> None:
        racer = Racer(cluster, ledger, number)
        try:
            racer.run(jobs)
        except MusterError as error:
            errors.append(f"driver {number}: {error}")
        finally:
            racer.close()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(racers)]
    for thread in threads:
        thread.start()
    _until(lambda: ledger.counts["granted"] >= racers)
    turn, passed = _starved(cluster, ledger)
    for thread in threads:
        thread.join(3600)
    errors += [f"driver {number} did not end" for number, thread in enumerate(threads) if thread.is_alive()]
    return Race(ledger, time.monotonic() - began, errors, turn, passed)


def _starved(cluster: Cluster, ledger: Ledger) -> tuple[float, int]:
    """A job that wants everything while others race; its waiting time, and how many came before it."""
    racer = Racer(cluster, ledger, 900_000)
    spec = LaunchSpec(job="20261126-900000-0000", hosts=racer.hosts).having(LeaseOptions(GPUS, None))
    leasing = LeaseRequests(Start(spec, place_ranks(spec.hosts, spec), drop, Timings()), racer.connected())
    began = time.monotonic()
    leases = leasing._try()
    leases = leases or leasing._try()  # now every host has the date that counts
    queued = leasing._queued or time.time()
    leases = leases or leasing.take()
    turn, gpus = time.monotonic() - began, ledger.take(spec.job, queued, leases)
    passed = sum(since > queued for at, since in ledger.granted[:-1])
    ledger.give_back(gpus)
    racer.close()
    return turn, passed


def _until(done: object) -> None:
    end = time.monotonic() + 600
    while callable(done) and not done() and time.monotonic() < end:
        time.sleep(0.05)


@contextmanager
def agents(cluster: Cluster) -> Iterator[Racer]:
    """Agents of one user on all nodes."""
    racer = Racer(cluster, Ledger(), 1_000)
    try:
        yield racer
    finally:
        racer.close()


def leftovers(cluster: Cluster) -> list[str]:
    """GPUs that are not free, jobs that wait, and claims."""
    with agents(cluster) as racer:
        found = ask_every(racer.connected().channels, LEASES, 60.0).require_all()
    taken = [f"{host}: {gpu}" for host, each in found.items() for gpu in each.gpus if not gpu.is_free]
    waiting = [f"{host}: {job}" for host, each in found.items() for job in each.waiting]
    return taken + waiting
