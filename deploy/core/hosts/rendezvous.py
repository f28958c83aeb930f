"""The address at which ranks meet, and which hosts try to reach each other. Pure.

For a launch, a check, and the search for broken pairs in a stalled job.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import HostError, UnfitError
from .host_facts import Facts
from .hostfile import Host

PORTS = "20000-31999"  # core/agent/rendezvous_port.py
MOST_PEERS = 64


@dataclass(frozen=True)
class Rendezvous:
    """An address and port of the head where ranks find each other, and each host's interface towards it."""

    address: str
    port: int
    interfaces: Mapping[str, str | None]

    def rank_addresses(
        self, head: str, addresses: Mapping[str, Sequence[str]], facts: Mapping[str, Facts]
    ) -> dict[str, tuple[str, ...]]:
        """The addresses where the ranks of each host listen: those of its interface towards the rendezvous.

        A host has no entry if that interface is unknown, for example if `addr=` names another address.
        """
        listening: dict[str, tuple[str, ...]] = {head: (self.address,)}
        for name, interface in self.interfaces.items():
            if name != head and interface:
                of = facts[name].interfaces
                own = tuple(address for address in addresses.get(name, ()) if of.get(address) == interface)
                alike = tuple(address for address in own if (":" in address) == (":" in self.address))
                listening[name] = alike or own
        return {name: own for name, own in listening.items() if own}

    def require_network(self, network: str, facts: Mapping[str, Facts]) -> None:
        """`UnfitError` for hosts that reach the head by another network than --network, through a router."""
        if "/" not in network:
            return  # other hosts may name their interfaces otherwise
        outside = []
        for name, interface in self.interfaces.items():
            own = facts[name]
            if interface not in {own.interfaces.get(address) for address in on_network(own, network)}:
                text = f"reaches the head through {interface}, outside --network {network}"
                outside.append((name, text))
        if outside:
            raise UnfitError(outside)


@dataclass(frozen=True)
class ClusterFacts:
    """The facts of every host by its name, and the rendezvous of the ranks."""

    hosts: Mapping[str, Facts]
    rendezvous: Rendezvous


def on_network(facts: Facts, network: str) -> tuple[str, ...]:
    """The host's addresses in a network such as 10.1.0.0/16, or on the interface of that name."""
    if "/" not in network:
        return tuple(address for address in facts.addresses if facts.interfaces.get(address) == network)
    wanted = ipaddress.ip_network(network)
    return tuple(address for address in facts.addresses if ipaddress.ip_address(address) in wanted)


def addresses_of(host: Host, facts: Facts, *, alone: bool) -> list[str]:
    """The addresses at which other hosts may reach a host: its addr= if it has that, else all its own."""
    if host.addr:
        return [host.addr]
    return ["127.0.0.1"] if alone else list(facts.addresses)


def head_addresses(head: Host, facts: Facts, network: str, *, alone: bool) -> list[str]:
    """The addresses of the head for the rendezvous; `UnfitError` if it has none on the data network."""
    if not network:
        return addresses_of(head, facts, alone=alone)
    if addresses := on_network(facts, network):
        return list(addresses)
    has = ", ".join(f"{address} ({facts.interfaces.get(address, '?')})" for address in facts.addresses)
    raise UnfitError([(head.name, f"has no address on --network {network}, only {has or 'none'}")])


def meet(
    addresses: Sequence[str], port: int, reached: Mapping[str, Mapping[str, str | None]]
) -> Rendezvous | None:
    """The rendezvous at the first address of the head that all hosts reach; None without such an address.

    `reached`: for each host, its own interface by the address of the head.
    """
    for address in addresses:
        if reached and all(address in interfaces for interfaces in reached.values()):
            own = {name: interfaces[address] for name, interfaces in reached.items()}
            return Rendezvous(address, port, own)
    return None


def unreached(
    head: str, addresses: Sequence[str], port: int, reached: Mapping[str, Mapping[str, str | None]]
) -> UnfitError:
    """The error that not all hosts reach one address of the head. It names those that reach the fewest."""
    own = {name: [address for address in addresses if address in seen] for name, seen in reached.items()}
    fewest = min(map(len, own.values()))
    return UnfitError(
        (
            name,
            f"reaches {head} at {', '.join(seen) or 'none'} of {', '.join(addresses)} (port {port}); give "
            f"{head} an addr= that all hosts reach, or open the ports {PORTS} between the hosts",
        )
        for name, seen in own.items()
        if len(seen) == fewest
    )


def no_port(refused: str | None) -> HostError:
    """The error of a host without a port that others could reach."""
    return HostError(
        "port.none-free", refused or "it gave no port", f"free a port of {PORTS} there: ss -ltnp"
    )


def peers(number: int, hosts: int, most: int = MOST_PEERS) -> list[int]:
    """The indices of the hosts that host `number` tries to reach, its own among them.

    Up to `most` hosts, these are all hosts. Above that, trying all pairs would take too long. Then a host
    tries the head, the hosts after it in the list, and hosts spread over the whole list. Each host is tried
    by equally many others, so a rack or network that is cut off shows; a single broken pair may not.
    """
    if hosts <= most:
        return list(range(hosts))
    half = most // 2
    steps = {*range(half), *(hosts * step // half for step in range(half))}
    return sorted({0, *((number + step) % hosts for step in steps)})
