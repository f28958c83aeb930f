"""The hosts of a command: a connection to an agent on each, their facts, and the rendezvous of the ranks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType

from ..errors import MusterError, UnfitError
from ..hosts.facts import ClusterFacts, Facts, Rendezvous, on_network
from ..hosts.hostfile import Host
from ..timings import Timings
from .bootstrap import agent_source
from .channel import Channel
from .fanout import ask_every, on_every
from .inbox import Inbox
from .listener import Listener
from .pipe import OpenPipe
from .requests.hosts import FACTS, OPEN_PORT, REACH, TIME

CLOCKS_AT_ONCE = 16  # more threads would wait for each other, and spoil what they measure
REACH_SECONDS, FACTS_SECONDS = 10.0, 30.0
SOME_PEERS, MOST_ADDRESSES = 8, 64


class Cluster(Listener):
    """A channel to every host. Leaving the context cuts every lifeline.

    `facts`: whether each host is asked for its facts when it is connected; not every command needs them.
    `timings`: where the time that it takes is noted, if anywhere. `greet`: posts more requests to each host
    while it gathers its facts. `network`: the data network that the user has chosen (--network), if any.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        open_pipe: OpenPipe,
        *,
        facts: bool = True,
        timings: Timings | None = None,
        greet: Callable[[Channel], None] = lambda channel: None,
        network: str = "",
    ) -> None:
        super().__init__(Inbox(len(hosts)))
        self._greet, self._network = greet, network
        self.hosts = tuple(hosts)
        self._timings = timings or Timings()
        self._wants_facts = facts
        self._opened = self.channels  # until some are left out
        self.facts: dict[str, Facts] = {}
        self._open_pipe = open_pipe

    def __enter__(self) -> Cluster:
        """Connect to every host at once; `UnfitError` names all those that cannot be reached."""
        if errors := self.connect():
            self.close()
            raise UnfitError(errors.items())
        return self

    def connect(self, heard: Callable[[], object] = lambda: None) -> dict[str, MusterError]:
        """Connect to every host at once; returns the errors of those that are not reached, and left out.

        `heard`: called for each host that is connected or has failed.
        """
        agent_source()  # made once, before many threads would make it at once
        by_name = {host.name: host for host in self.hosts}
        opened = on_every(by_name, lambda name: self._open(by_name[name]), heard=heard)
        self.leave_out(opened.errors)
        return opened.errors

    def leave_out(self, names: Iterable[str]) -> None:
        """Ask these hosts nothing more; their connections are closed with the others."""
        failed = {*names}
        order = [host.name for host in self.hosts]
        self.channels = {name: self._opened[name] for name in order if name in self._opened.keys() - failed}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut every lifeline."""
        on_every(self._opened, lambda name: self._opened[name].close())

    def _open(self, host: Host) -> None:
        pipe = self._open_pipe(host)
        with self._timings.part("agent and facts" if self._wants_facts else "agent", host.name):
            channel = self._opened[host.name] = Channel(host.name, pipe, self.events)
            channel.silence, channel.reopen = self.losses, partial(self._reopen, host)
            if self._wants_facts:
                facts = channel.post(FACTS)
                self._greet(channel)
                self.facts[host.name] = channel.wait(facts, FACTS_SECONDS)
            else:
                channel.ask(TIME)

    def _reopen(self, host: Host) -> Channel:
        """Connect to a host again, after its connection was lost."""
        lost = self._opened[host.name]
        lost.give_up()
        lost.close()
        self.silent.pop(host.name, None)
        self._open(host)
        self._opened[host.name].planned = lost.planned
        if host.name in self.channels:
            self.channels[host.name] = self._opened[host.name]
        return self._opened[host.name]

    def survey(self) -> ClusterFacts:
        """The facts of every host, and an address of the head that every host has just reached.

        With `network`, this address must be in it, and so must every host's interface to it. After this,
        channels know the clocks of hosts: which of two failures was first may depend on milliseconds.
        """
        channels = self.channels
        with self._timings.part("clocks"):
            on_every(channels, lambda name: channels[name].set_clock(), at_once=CLOCKS_AT_ONCE).require_all()
        with self._timings.part("addresses"):
            return self._meet()

    def _meet(self) -> ClusterFacts:
        channels, network = self.channels, self._network
        head = self.hosts[0]
        nonce = secrets.token_hex(8)
        port = self.channels[head.name].ask(OPEN_PORT, nonce=nonce).port
        addresses = self._on_network(head, network) if network else self.addresses(head)
        request = {"addresses": addresses, "port": port, "nonce": nonce}
        answers = ask_every(channels, REACH, REACH_SECONDS, lambda name: request).require_all()
        reached = {name: answer.interfaces for name, answer in answers.items()}
        address = next(
            (place for place in addresses if all(place in seen for seen in reached.values())), None
        )
        if address is None:
            raise UnfitError(_explain_unreached(head.name, addresses, port, reached))
        interfaces = {name: seen[address] for name, seen in reached.items()}
        if network and (strays := self._strays(network, interfaces)):
            raise UnfitError(strays)
        facts = {host.name: self.facts[host.name] for host in self.hosts}
        return ClusterFacts(facts, Rendezvous(address, port, interfaces))

    def addresses(self, host: Host) -> list[str]:
        """Where other hosts may reach a host: its addr= if it has that, else all its own addresses."""
        if host.addr:
            return [host.addr]
        return ["127.0.0.1"] if len(self.hosts) == 1 else list(self.facts[host.name].addresses)

    def data_addresses(self, host: str) -> list[str]:
        """The addresses of a host on the data network, as the user says: --network, else addr=; else none."""
        known = next(other for other in self.hosts if other.name == host)
        if self._network and (chosen := on_network(self.facts[host], self._network)):
            return list(chosen)
        return [known.addr] if known.addr else []

    def peer_addresses(self, host: str) -> list[str]:
        """Addresses of some other hosts, by which a host finds out where it reaches them."""
        others = [other for other in self.hosts if other.name != host and other.name in self.facts]
        some = others[:: max(1, len(others) // SOME_PEERS)][:SOME_PEERS]
        return [address for other in some for address in self.addresses(other)][:MOST_ADDRESSES]

    def _on_network(self, head: Host, network: str) -> list[str]:
        """The head's addresses in the network that the user has chosen."""
        facts = self.facts[head.name]
        if addresses := on_network(facts, network):
            return list(addresses)
        has = ", ".join(f"{address} ({facts.interfaces.get(address, '?')})" for address in facts.addresses)
        raise UnfitError([(head.name, f"has no address on --network {network}, only {has or 'none'}")])

    def _strays(self, network: str, interfaces: Mapping[str, str | None]) -> list[tuple[str, str]]:
        """Hosts that reach the head's address by another network, through a router."""
        if "/" not in network:
            return []  # the name of the head's interface means nothing on other hosts
        strays = []
        for name, interface in interfaces.items():
            allowed = {
                self.facts[name].interfaces.get(address) for address in on_network(self.facts[name], network)
            }
            if interface not in allowed:
                strays.append((name, f"would leave --network {network}: its way to the head is {interface}"))
        return strays


def expect_ranks(channels: Mapping[str, Channel], places: Mapping[int, str]) -> None:
    """From now on each host may answer for the ranks alone that it has by these places of a job's ranks."""
    own: dict[str, set[int]] = {}
    for rank, host in places.items():
        own.setdefault(host, set()).add(rank)
    for host, channel in channels.items():
        channel.planned = frozenset(own.get(host, ()))


def _explain_unreached(
    head: str, addresses: Sequence[str], port: int, interfaces: Mapping[str, Mapping[str, str | None]]
) -> list[tuple[str, str]]:
    """One line for each host that reaches the fewest addresses of the head."""
    reached = {
        name: [address for address in addresses if address in seen] for name, seen in interfaces.items()
    }
    fewest = min(len(seen) for seen in reached.values())
    return [
        (
            name,
            f"reaches {head} at {', '.join(seen) or 'none'} of {', '.join(addresses)} (port {port}); give "
            f"{head} an addr= that all hosts reach, or open the ports 20000-31999 between the hosts",
        )
        for name, seen in reached.items()
        if len(seen) == fewest
    ]
