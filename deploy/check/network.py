"""Whether hosts reach each other at the addresses of their ranks, and all reach the head at one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..connect.requests.hosts import Reached
from ..errors import HostError
from ..hosts.facts import Facts
from ..hosts.hostfile import Host
from .finding import Finding
from .measurements import Examined

BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "podman")
PORTS = "20000-31999"


def ports(head: str, examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """Findings for hosts without a free port where others could connect."""
    for name, measured in examined.items():
        if isinstance(measured.rendezvous, HostError):
            yield Finding(
                measured.rendezvous.kind,
                name,
                "error" if name == head else "warning",
                measured.rendezvous.text,
                f"free a port of {PORTS} there: ss -ltnp",
            )


def network(hosts: Sequence[Host], examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """Findings for pairs of hosts that do not reach each other, and about the address of the rendezvous."""
    given = {host.name: host.addr for host in hosts}
    wrong = {
        name
        for name, measured in examined.items()
        if given[name] and name in measured.reached and not measured.reached[name].interfaces
    }
    for name in sorted(wrong):
        yield Finding(
            "address.wrong",
            name,
            "error",
            f"addr={given[name]} is not an address of this host: {_reason(examined[name], name)}",
            f"give one of {', '.join(examined[name].facts.addresses)}",
        )
    head = hosts[0].name
    places = rank_addresses(
        head,
        {name: measured.facts for name, measured in examined.items()},
        {name: measured.addresses for name, measured in examined.items()},
        {name: measured.reached for name, measured in examined.items()},
    )
    pairs = [
        (source, target)
        for source in examined
        for target in examined
        if source != target and target not in wrong and not _reaches(examined[source], target, places)
    ]
    yield from _unreached(pairs, examined)
    if head in examined and head not in wrong and not any(target == head for _, target in pairs):
        yield from _data_network(head, examined)


def _unreached(pairs: Sequence[tuple[str, str]], examined: Mapping[str, Examined]) -> Iterator[Finding]:
    lonely, shut = _to_blame(pairs, examined)
    for source in sorted(lonely):
        target = next(target for origin, target in pairs if origin == source)
        yield Finding(
            "pair.unreachable",
            source,
            "error",
            f"cannot connect to any other host: {target} at {_reason(examined[source], target)}",
            f"let it connect to the ports {PORTS} of the others, or give addr= of a network they share",
        )
    for target in sorted(shut):
        source = next(source for source, aim in pairs if aim == target)
        yield Finding(
            "pair.unreachable",
            target,
            "error",
            f"no other host can connect to its port {examined[target].rendezvous}: {source} tried "
            f"{_reason(examined[source], target)}",
            f"open its ports {PORTS} for the others, or give it an addr= that all hosts reach",
        )
    for source, target in pairs:
        if source not in lonely and target not in shut:
            yield Finding(
                "pair.unreachable",
                source,
                "error",
                f"cannot connect to {target} port {examined[target].rendezvous}: "
                f"{_reason(examined[source], target)}",
                f"open the ports {PORTS} of {target} for it, or give {target} an addr= that all hosts reach",
                peer=target,
            )


def _to_blame(
    pairs: Sequence[tuple[str, str]], examined: Mapping[str, Examined]
) -> tuple[set[str], set[str]]:
    """The hosts that reach none of several others, and those that none of several others reaches.

    A host is not to blame where all the hosts at the other end of its pairs are.
    """
    tried = [(source, target) for source in examined for target in examined[source].reached]
    tried = [(source, target) for source, target in tried if source != target and target in examined]
    out, out_tried = Counter(source for source, _ in pairs), Counter(source for source, _ in tried)
    into, into_tried = Counter(target for _, target in pairs), Counter(target for _, target in tried)
    lonely = {source for source, times in out.items() if times == out_tried[source] > 1}
    shut = {target for target, times in into.items() if times == into_tried[target] > 1}
    shut &= {target for source, target in pairs if source not in lonely}
    lonely &= {source for source, target in pairs if target not in shut}
    return lonely, shut


def rank_addresses(
    head: str,
    facts: Mapping[str, Facts],
    addresses: Mapping[str, Sequence[str]],
    reached: Mapping[str, Mapping[str, Reached]],
) -> dict[str, tuple[str, ...]]:
    """The addresses where the ranks of each host will listen: those of its interface towards the rendezvous.

    A host has no entry if that interface is not known, for example if `addr=` names another address.
    """
    to_head = {name: seen[head].interfaces for name, seen in reached.items() if head in seen}
    chosen = _chosen(addresses.get(head, ()), to_head)
    listening: dict[str, tuple[str, ...]] = {head: (chosen,)} if chosen else {}
    for name, seen in to_head.items():
        if chosen and name != head and (interface := seen[chosen]):
            interfaces = facts[name].interfaces
            places = [address for address in addresses.get(name, ()) if interfaces.get(address) == interface]
            listening[name] = tuple(
                address for address in places if (":" in address) == (":" in chosen)
            ) or tuple(places)
    return {name: places for name, places in listening.items() if places}


def _chosen(addresses: Sequence[str], reached: Mapping[str, Mapping[str, str | None]]) -> str:
    """The address that a launch chooses: the first one of the head that all hosts reach; empty if none."""
    common = (address for address in addresses if all(address in seen for seen in reached.values()))
    return next(common, "") if reached else ""


def _data_network(head: str, examined: Mapping[str, Examined]) -> Iterator[Finding]:
    reached = {
        name: measured.reached[head].interfaces
        for name, measured in examined.items()
        if head in measured.reached
    }
    chosen = _chosen(examined[head].addresses, reached)
    if reached and not chosen:
        yield Finding(
            "network.split",
            head,
            "error",
            f"no address of it is reached by all hosts: {', '.join(examined[head].addresses)}",
            "give it an addr= that all hosts reach",
        )
    for name, seen in reached.items():
        interface = seen[chosen] if chosen else None
        if interface and interface.startswith(BRIDGES):
            yield Finding(
                "network.bridge",
                name,
                "warning",
                f"{chosen}, where the rendezvous would be, is reached by {interface}, a container bridge",
                f"give {head} the addr= of the data network",
            )


def _reaches(measured: Examined, target: str, places: Mapping[str, Sequence[str]]) -> bool:
    """Whether a host reaches the addresses of another's ranks. True if the other has no port to try."""
    if target not in measured.reached:
        return True
    seen = measured.reached[target].interfaces
    return any(place in seen for place in places[target]) if target in places else bool(seen)


def _reason(measured: Examined, target: str) -> str:
    refused = measured.reached[target].refused
    return "; ".join(f"{address}: {reason}" for address, reason in refused.items()) or "no answer in time"
