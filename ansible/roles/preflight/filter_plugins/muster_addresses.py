"""Decides which of the addresses that hosts report are theirs: they become lines in files of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Known = Mapping[str, Mapping[str, Any]]


def own_addresses(
    known: Known, given: Mapping[str, str], resolved: Iterable[Mapping[str, list[str]]]
) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each with the addresses that are its own, and with those that are `disputed`.

    `given` has the addr= or the name of each host in the hosts file, which is the operator's word. `resolved`
    has the addresses of the hosts' names, as each host looks them up. An address that two hosts report is
    neither's: such as that of a container engine's bridge, but also that of a host which another one claims.
    Where it is known that a host is reached at it, it is disputed, with the name of the other host.
    """
    claims: dict[str, list[str]] = {}
    for name, host in known.items():
        for address in {*host["addresses"], given[name]}:
            claims.setdefault(address, []).append(name)
    reached = {address for names in resolved for addresses in names.values() for address in addresses}
    reached |= set(given.values())
    judged = {}
    for name, host in known.items():
        others = {
            address: next((other for other in claims[address] if other != name), "")
            for address in host["addresses"]
        }
        own = [
            address
            for address, other in others.items()
            if address == given[name] or (not other and is_of_a_host(address))
        ]
        disputed = {
            address: other
            for address, other in others.items()
            if other and address != given[name] and address in reached and is_of_a_host(address)
        }
        judged[name] = dict(host) | {"addresses": own, "disputed": disputed}
    return judged


def is_of_a_host(text: str) -> bool:
    """Whether a text is an address that one host alone can have, as `ip` prints it."""
    from ipaddress import IPv4Address, ip_address

    try:
        address = ip_address(text)
    except ValueError:
        return False
    if "%" in text or text != str(address):
        return False
    v4 = address if isinstance(address, IPv4Address) else None
    local = address.is_unspecified or address.is_loopback or address.is_multicast
    no_host = v4 is not None and (v4.is_reserved or int(v4) < 1 << 24)  # 240.0.0.0/4, 0.0.0.0/8
    mapped = None if v4 else getattr(address, "ipv4_mapped", None)
    return not (local or no_host or mapped)


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_own_addresses": own_addresses}
