"""Which hosts reach each other, and whether all reach the head at one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..errors import HostError
from ..hosts.hostfile import Host
from .finding import Finding
from .measurements import Examined

BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "podman")
PORTS = "20000-31999"


def ports(head: str, examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """Hosts that have no free port where others could meet them."""
    for name, one in examined.items():
        if isinstance(one.rendezvous, HostError):
            yield Finding(
                one.rendezvous.kind,
                name,
                "error" if name == head else "warning",
                one.rendezvous.text,
                f"free a port of {PORTS} there: ss -ltnp",
            )


def network(hosts: Sequence[Host], examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """Pairs that do not reach each other, and the address where ranks would meet."""
    given = {host.name: host.addr for host in hosts}
    wrong = {
        name
        for name, one in examined.items()
        if given[name] and name in one.reached and not one.reached[name].interfaces
    }
    for name in sorted(wrong):
        yield Finding(
            "address.wrong",
            name,
            "error",
            f"addr={given[name]} is no address of it: {_reason(examined[name], name)}",
            f"give one of {', '.join(examined[name].facts.addresses)}",
        )
    pairs = [
        (source, target)
        for source in examined
        for target in examined
        if source != target and target not in wrong and not _reaches(examined[source], target)
    ]
    yield from _unreached(pairs, examined)
    head = hosts[0].name
    if head in examined and head not in wrong and not any(target == head for _, target in pairs):
        yield from _data_network(head, examined)


def _unreached(pairs: Sequence[tuple[str, str]], examined: Mapping[str, Examined]) -> Iterator[Finding]:
    outgoing = Counter(source for source, _ in pairs)
    tried = {source: len(examined[source].reached.keys() & examined.keys() - {source}) for source in outgoing}
    lonely = {source for source, times in outgoing.items() if times == tried[source] > 1}
    for source in outgoing:
        if source in lonely:
            target = next(target for one, target in pairs if one == source)
            yield Finding(
                "pair.unreachable",
                source,
                "error",
                f"cannot connect to any other host: {target} at {_reason(examined[source], target)}",
                f"let it connect to the ports {PORTS} of the others, or give addr= of a network they share",
            )
    for source, target in pairs:
        if source not in lonely:
            yield Finding(
                "pair.unreachable",
                source,
                "error",
                f"cannot connect to {target} port {examined[target].rendezvous}: "
                f"{_reason(examined[source], target)}",
                f"open the ports {PORTS} of {target} for it, or give {target} an addr= that all hosts reach",
                peer=target,
            )


def _data_network(head: str, examined: Mapping[str, Examined]) -> Iterator[Finding]:
    """The choice that a launch makes: the first address of the head that all hosts reach."""
    reached = {name: one.reached[head].interfaces for name, one in examined.items() if head in one.reached}
    chosen = [
        address for address in examined[head].addresses if all(address in seen for seen in reached.values())
    ]
    if reached and not chosen:
        yield Finding(
            "network.split",
            head,
            "error",
            f"no address of it is reached by all hosts: {', '.join(examined[head].addresses)}",
            "give it an addr= that all hosts reach",
        )
    for name, seen in reached.items():
        interface = seen[chosen[0]] if chosen else None
        if interface and interface.startswith(BRIDGES):
            yield Finding(
                "network.bridge",
                name,
                "warning",
                f"{chosen[0]}, where the rendezvous would be, is reached by {interface}, a container bridge",
                f"give {head} the addr= of the data network",
            )


def _reaches(one: Examined, target: str) -> bool:
    """Whether a host reaches another. A host without a port to try counts as reached."""
    return target not in one.reached or bool(one.reached[target].interfaces)


def _reason(one: Examined, target: str) -> str:
    refused = one.reached[target].refused
    return "; ".join(f"{address}: {reason}" for address, reason in refused.items()) or "no answer in time"
