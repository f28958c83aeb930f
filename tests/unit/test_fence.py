"""Never two drivers: the claims of the hosts of a job, by agents of this machine with homes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.connect.cluster import Cluster
from muster.deploy.errors import MusterError, UnfitError
from muster.deploy.hosts.hostfile import Host
from muster.deploy.jobs import fence
from muster.deploy.jobs.fence import TakenOverError, claim
from muster.deploy.plan.program import Program
from muster.deploy.plan.spec import LaunchSpec
from tests.hosts_here import HostsHere


class Hosts:
    """Three hosts, and drivers that are connected to some of them."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        self._here, self._stack = HostsHere(root, 3), stack
        self.spec = LaunchSpec(
            job="20261120-120000-abcd", program=Program(module="train"), hosts=self._here.hosts
        )

    def driver(self, *numbers: int) -> Cluster:
        chosen = [self._here.hosts[number - 1] for number in numbers]
        return self._stack.enter_context(Cluster(chosen, self._here.open))

    def end(self, but: tuple[str, ...] = ()) -> None:
        def open_pipe(host: Host) -> object:
            if host.name in but:
                raise MusterError("no route", host=host.name)
            return self._here.open(host)

        fence.end(self.spec, open_pipe)  # type: ignore[arg-type]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        yield Hosts(tmp_path, stack)


def test_a_driver_needs_more_than_half_of_the_hosts(hosts: Hosts) -> None:
    with pytest.raises(MusterError, match="1 of the job's 3 hosts are left"):
        claim(hosts.driver(1), hosts.spec, 0)
    claim(hosts.driver(1, 2), hosts.spec, 0)


def test_while_a_driver_has_the_hosts_no_other_can_claim_them(hosts: Hosts) -> None:
    first = hosts.driver(1, 2)
    claim(first, hosts.spec, 0)
    second = hosts.driver(2, 3)
    with pytest.raises(UnfitError) as error:
        claim(second, hosts.spec, 1)
    assert str(error.value) == "node2: cannot claim the host: another driver of the job still uses this host"
    claim(first, hosts.spec, 0)  # its next attempt on the same connections


def test_a_driver_that_stood_still_loses_to_the_one_that_took_over(hosts: Hosts) -> None:
    paused = hosts.driver(1, 2, 3)
    claim(paused, hosts.spec, 0)
    paused.close()  # its agents have ended, for it was silent
    standby = hosts.driver(2, 3)
    claim(standby, hosts.spec, 1)
    standby.close()
    loser = hosts.driver(1, 2, 3)
    with pytest.raises(TakenOverError, match="another driver has the job, or has ended it: node2, node3"):
        claim(loser, hosts.spec, 0)
    loser.close()
    claim(hosts.driver(1, 2), hosts.spec, 1)


def test_it_loses_at_once_while_the_other_driver_has_the_hosts(hosts: Hosts) -> None:
    standby = hosts.driver(2, 3)
    claim(standby, hosts.spec, 1)
    with pytest.raises(TakenOverError):
        claim(hosts.driver(1, 2, 3), hosts.spec, 0)
    claim(standby, hosts.spec, 1)


def test_a_driver_that_gets_no_majority_leaves_no_trace(hosts: Hosts) -> None:
    first = hosts.driver(1, 2)
    claim(first, hosts.spec, 0)
    standby = hosts.driver(2, 3)
    with pytest.raises(UnfitError):
        claim(standby, hosts.spec, 1)
    standby.close()
    first.close()
    claim(hosts.driver(1, 2, 3), hosts.spec, 0)


@pytest.mark.parametrize("missed", [(), ("node1",)])
def test_a_job_that_is_over_is_not_started_again(hosts: Hosts, missed: tuple[str, ...]) -> None:
    with hosts.driver(1, 2, 3) as driver:
        claim(driver, hosts.spec, 3)
    hosts.end(but=missed)
    for term in (3, 4):
        with pytest.raises(TakenOverError):
            claim(hosts.driver(1, 2), hosts.spec, term)
