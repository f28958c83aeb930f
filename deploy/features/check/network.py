"""Whether hosts reach each other at the addresses of their ranks, and all reach the head at one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...core.connect.requests import Reached
from ...core.errors import HostError
from ...core.hosts.host_facts import Facts
from ...core.hosts.hostfile import Host
from ...core.hosts.rendezvous import PORTS, meet
from ...core.plan.openmpi import without_ipv4
from .finding import Finding, error, of_error, warning
from .host_reports import HostReport

BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "podman")


def ports(head: str, by_host: Mapping[str, HostReport]) -> Iterator[Finding]:
    """Findings for hosts without a free port where others could connect."""
    for name, measured in by_host.items():
        if isinstance(measured.rendezvous, HostError):
            reason, severity = measured.rendezvous, error if name == head else warning
            yield severity(reason.kind, name, reason.text, reason.remedy)


def network(hosts: Sequence[Host], by_host: Mapping[str, HostReport], *, mpi: bool) -> Iterator[Finding]:
    """Findings for pairs of hosts that do not reach each other, and about the address of the rendezvous.

    `mpi`: for mpirun.
    """
    configured = {host.name: host.addr for host in hosts}
    wrong = {
        name
        for name, measured in by_host.items()
        if configured[name] and name in measured.reached and not measured.reached[name].interfaces
    }
    for name in sorted(wrong):
        yield error(
            "address.wrong",
            name,
            f"addr={configured[name]} is not an address of this host: {_reason(by_host[name], name)}",
            f"give one of {', '.join(by_host[name].facts.addresses)}",
        )
    head = hosts[0].name
    addresses = rank_addresses(
        head,
        {name: measured.facts for name, measured in by_host.items()},
        {name: measured.addresses for name, measured in by_host.items()},
        {name: measured.reached for name, measured in by_host.items()},
    )
    pairs = [
        (source, target)
        for source in by_host
        for target in by_host
        if source != target and target not in wrong and not _reaches(by_host[source], target, addresses)
    ]
    yield from _unreached(pairs, by_host)
    if head in by_host and head not in wrong and not any(target == head for _, target in pairs):
        yield from _data_network(head, by_host, mpi=mpi)


def _unreached(pairs: Sequence[tuple[str, str]], by_host: Mapping[str, HostReport]) -> Iterator[Finding]:
    cut_off, closed = _to_blame(pairs, by_host)
    for source in sorted(cut_off):
        target = next(target for origin, target in pairs if origin == source)
        yield error(
            "pair.unreachable",
            source,
            f"cannot connect to any other host: {target} at {_reason(by_host[source], target)}",
            f"let it connect to the ports {PORTS} of the others, or give addr= of a network they share",
        )
    for target in sorted(closed):
        source = next(source for source, aim in pairs if aim == target)
        yield error(
            "pair.unreachable",
            target,
            f"no other host can connect to its port {by_host[target].rendezvous}: {source} tried "
            f"{_reason(by_host[source], target)}",
            f"open its ports {PORTS} for the others, or give it an addr= that all hosts reach",
        )
    for source, target in pairs:
        if source not in cut_off and target not in closed:
            yield error(
                "pair.unreachable",
                source,
                f"cannot connect to {target} port {by_host[target].rendezvous}: "
                f"{_reason(by_host[source], target)}",
                f"open the ports {PORTS} of {target} for it, or give {target} an addr= that all hosts reach",
                peer=target,
            )


def _to_blame(pairs: Sequence[tuple[str, str]], hosts: Mapping[str, HostReport]) -> tuple[set[str], set[str]]:
    """The hosts that reach none of several others, and those that none of several others reaches.

    A host is not to blame if all the hosts at the other end of its pairs are.
    """
    tried = [(source, target) for source in hosts for target in hosts[source].reached]
    tried = [(source, target) for source, target in tried if source != target and target in hosts]
    out, out_tried = Counter(source for source, _ in pairs), Counter(source for source, _ in tried)
    into, into_tried = Counter(target for _, target in pairs), Counter(target for _, target in tried)
    cut_off = {source for source, times in out.items() if times == out_tried[source] > 1}
    closed = {target for target, times in into.items() if times == into_tried[target] > 1}
    closed &= {target for source, target in pairs if source not in cut_off}
    cut_off &= {source for source, target in pairs if target not in closed}
    return cut_off, closed


def rank_addresses(
    head: str,
    facts: Mapping[str, Facts],
    addresses: Mapping[str, Sequence[str]],
    reached: Mapping[str, Mapping[str, Reached]],
) -> dict[str, tuple[str, ...]]:
    """The addresses where the ranks of each host will listen; none if there is no rendezvous."""
    rendezvous = meet(addresses.get(head, ()), 0, _to_head(head, reached))
    return rendezvous.rank_addresses(head, addresses, facts) if rendezvous else {}


def _to_head(head: str, reached: Mapping[str, Mapping[str, Reached]]) -> dict[str, Mapping[str, str | None]]:
    return {name: seen[head].interfaces for name, seen in reached.items() if head in seen}


def _data_network(head: str, by_host: Mapping[str, HostReport], *, mpi: bool) -> Iterator[Finding]:
    to_head = _to_head(head, {name: measured.reached for name, measured in by_host.items()})
    addresses = by_host[head].addresses
    rendezvous = meet(addresses, 0, to_head)
    if rendezvous:
        facts = {name: by_host[name].facts for name in rendezvous.interfaces if mpi}
        for name, reason in without_ipv4(rendezvous, facts).items():
            yield of_error(name, reason)
        for name, interface in rendezvous.interfaces.items():
            if interface and interface.startswith(BRIDGES):
                text = f"is reached by {interface}, a container bridge"
                yield warning(
                    "network.bridge",
                    name,
                    f"{rendezvous.address}, where the rendezvous would be, {text}",
                    f"give {head} the addr= of the data network",
                )
    elif to_head:
        yield error(
            "network.split",
            head,
            f"no address of it is reached by all hosts: {', '.join(addresses)}",
            "give it an addr= that all hosts reach",
        )


def _reaches(measured: HostReport, target: str, addresses: Mapping[str, Sequence[str]]) -> bool:
    """Whether a host reaches the addresses of another's ranks. True if the other has no port to try."""
    if target not in measured.reached:
        return True
    seen = measured.reached[target].interfaces
    return any(address in seen for address in addresses[target]) if target in addresses else bool(seen)


def _reason(measured: HostReport, target: str) -> str:
    refused = measured.reached[target].refused
    return "; ".join(f"{address}: {reason}" for address, reason in refused.items()) or "no answer in time"
