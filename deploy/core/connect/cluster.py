"""The hosts of a command: a connection to an agent on each, their facts, and the rendezvous of the ranks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType

from ..errors import MusterError, UnfitError
from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from ..hosts.rendezvous import (
    ClusterFacts,
    addresses_of,
    head_addresses,
    meet,
    no_port,
    on_network,
    unreached,
)
from ..interrupts import ConnectingInterrupt
from ..timings import Timings
from .bootstrap import agent_source
from .channel import Channel
from .fanout import ask_every, on_every
from .kept_connections import KeptConnections
from .listener import Listener
from .pipe import OpenPipe
from .reports import Event, Lost, StopAsked
from .requests import FACTS, OPEN_PORT, REACH, TIME, Reached

CLOCKS_AT_ONCE = 16  # more threads would wait for each other, and spoil the measurement
REACH_SECONDS, FACTS_SECONDS = 10.0, 30.0
SOME_PEERS, MOST_ADDRESSES = 8, 64


class Cluster(Listener):
    """A channel to every host. Leaving the context cuts every lifeline.

    `facts`: whether each host is asked for its facts when it is connected; not every command needs them.
    `timings`: notes the parts of the start. `greet`: posts more requests to each host while it gathers its
    facts. `network`: the data network that the user has chosen (--network), if any. `kept`: hosts that are
    connected already, and have given their facts.
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
        kept: KeptConnections | None = None,
    ) -> None:
        self._kept, self._next = kept or KeptConnections(len(hosts)), KeptConnections(len(hosts))
        super().__init__(self._kept.events)
        self._greet, self._network = greet, network
        self.hosts = tuple(hosts)
        self._timings = timings or Timings()
        self._with_facts = facts
        self._opened = self.channels  # until some are left out
        self.facts: dict[str, Facts] = {}
        self._asked: dict[str, Facts] = {}
        """The facts as the hosts gave them; in `facts`, some are of an environment or a container."""
        self.open_pipe = open_pipe

    def __enter__(self) -> Cluster:
        """Connect to every host at once; `UnfitError` names all those that cannot be reached."""
        if errors := self.connect():
            self.close()
            raise UnfitError(errors.items())
        return self

    def connect(self) -> dict[str, MusterError]:
        """Connect to every host at once; returns the errors of those that are not reached, and left out."""
        agent_source()  # made once, before many threads would make it at once
        by_name = {host.name: host for host in self.hosts}
        try:
            opened = on_every(by_name, lambda name: self._open(by_name[name]))
        except KeyboardInterrupt as stop:
            raise ConnectingInterrupt(*stop.args) from None
        self.skip(opened.errors)
        return opened.errors

    def skip(self, names: Iterable[str]) -> None:
        """Send these hosts no further requests; their connections are closed with the others."""
        failed = {*names}
        order = [host.name for host in self.hosts]
        self.channels = {name: self._opened[name] for name in order if name in self._opened.keys() - failed}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut every lifeline."""
        self._next.close()
        on_every(self._opened, lambda name: self._opened[name].close())

    def hand_over(self, names: Iterable[str]) -> KeptConnections:
        """Keep the connections to these hosts and the spares for another cluster. This one closes the others.

        Of the unread reports, only a request to stop the job is passed on.
        """
        kept, self._next = self._next, KeptConnections()
        for name in names:
            kept.add(self._opened.pop(name), self._asked[name])
        kept.end_attempt(self.events.close())
        return kept

    def detach_spares(self, names: Iterable[str]) -> KeptConnections:
        """Hold the connections to these hosts for the next attempt. They leave the hosts of this cluster."""
        for name in names:
            self._next.add(self._opened.pop(name), self._asked[name])
        self.channels = {name: channel for name, channel in self.channels.items() if name in self._opened}
        self.hosts = tuple(host for host in self.hosts if host.name in self._opened)
        return self._next

    def drop_reports(self) -> None:
        """Drop what hosts have reported about the last attempt, once they can report no more of it."""
        if not self._kept.taken:
            return
        self.events.forget(but=(StopAsked,))
        for host, channel in self.channels.items():
            if channel.lost:
                self.events.put(Event(host, Lost(channel.lost)), wait=False)

    def _open(self, host: Host) -> None:
        if kept := self._kept.take(host.name):
            channel, self.facts[host.name] = kept
            self._take_over(host, channel)
            self._asked[host.name] = self.facts[host.name]
            self._greet(channel)
            return
        pipe = self.open_pipe(host)
        with self._timings.part("connecting" if self._with_facts else "agent", host.name):
            channel = Channel(host.name, pipe, self.events)
            self._take_over(host, channel)
            if self._with_facts:
                facts = channel.post(FACTS)
                self._greet(channel)
                self._asked[host.name] = self.facts[host.name] = channel.wait(facts, FACTS_SECONDS)
            else:
                channel.ask(TIME)

    def _take_over(self, host: Host, channel: Channel) -> None:
        self._opened[host.name] = channel
        channel.silence, channel.reopen = self.losses, partial(self._reopen, host)

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

        With `network`, this address must be in it, and so must every host's interface to it. This also sets
        the clock offset of each channel: the order of two failures may depend on milliseconds.
        """
        channels = self.channels
        with self._timings.part("clocks"):
            on_every(channels, lambda name: channels[name].set_clock(), at_once=CLOCKS_AT_ONCE).require_all()
        with self._timings.part("addresses"):
            return self._meet()

    def _meet(self) -> ClusterFacts:
        """Open a port of the head, and let every host try to reach it."""
        head, nonce = self.hosts[0], secrets.token_hex(8)
        facts = {host.name: self.facts[host.name] for host in self.hosts}
        opened = self.channels[head.name].ask(OPEN_PORT, nonce=nonce, probe=False)
        if opened.port is None:
            raise UnfitError([(head.name, no_port(opened.refused))])
        alone = len(self.hosts) == 1
        addresses = head_addresses(head, facts[head.name], self._network, alone=alone)
        target = {"host": head.name, "addresses": addresses, "port": opened.port, "nonce": nonce}
        answers = ask_every(self.channels, REACH, REACH_SECONDS, lambda name: {"targets": [target]})
        reached = {
            name: answer.reached.get(head.name, Reached()).interfaces
            for name, answer in answers.require_all().items()
        }
        rendezvous = meet(addresses, opened.port, reached)
        if rendezvous is None:
            raise unreached(head.name, addresses, opened.port, reached)
        rendezvous.require_network(self._network, facts)
        return ClusterFacts(facts, rendezvous)

    def addresses(self, host: Host) -> list[str]:
        """The addresses at which other hosts may reach a host."""
        return addresses_of(host, self.facts[host.name], alone=len(self.hosts) == 1)

    def data_addresses(self, host: str) -> list[str]:
        """The addresses of a host on the data network that the user named: --network, or addr=."""
        address = next(other.addr for other in self.hosts if other.name == host)
        if self._network and (chosen := on_network(self.facts[host], self._network)):
            return list(chosen)
        return [address] if address else []

    def peer_addresses(self, host: str) -> list[str]:
        """Addresses of some other hosts, for a host to test its routes to them."""
        others = [other for other in self.hosts if other.name != host and other.name in self.facts]
        some = others[:: max(1, len(others) // SOME_PEERS)][:SOME_PEERS]
        return [address for other in some for address in self.addresses(other)][:MOST_ADDRESSES]


def expect_ranks(channels: Mapping[str, Channel], placement: Mapping[int, str]) -> None:
    """From now on each host may answer only for its own ranks. `placement`: the host of each rank."""
    own: dict[str, set[int]] = {}
    for rank, host in placement.items():
        own.setdefault(host, set()).add(rank)
    for host, channel in channels.items():
        channel.planned = frozenset(own.get(host, ()))
