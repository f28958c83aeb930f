"""Checks the name and the keys that each host reports of itself: they become lines in files of all others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")
DOMAIN = re.compile(r"[a-z0-9][a-z0-9_.-]*[a-z0-9]")
KINDS = re.compile(r"ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)")
KEY = re.compile(r"[A-Za-z0-9+/]{64,4000}={0,2}")
NODE_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")


def own_identity(known: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each without a name or key that cannot be its own.

    A host name with a domain has to begin with the host's name in the hosts file. Keys are of the kinds that
    known_hosts may have, without marker, pattern or second line.
    """
    return {name: dict(host) | _checked(name, host) for name, host in known.items()}


def _checked(name: str, host: Mapping[str, Any]) -> dict[str, Any]:
    hostname, node_key = str(host["hostname"]), str(host["node_host_key"])
    keys = {
        kind: key
        for kind, key in host["host_keys"].items()
        if KINDS.fullmatch(str(kind)) and KEY.fullmatch(str(key))
    }
    return {
        "hostname": hostname if _is_own(hostname.lower(), name.lower()) else name,
        "host_keys": keys,
        "node_host_key": node_key if NODE_KEY.fullmatch(node_key) else "",
    }


def _is_own(hostname: str, name: str) -> bool:
    if LABEL.fullmatch(hostname):
        return True
    return bool(DOMAIN.fullmatch(hostname)) and hostname.partition(".")[0] == name.partition(".")[0]


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_own_identity": own_identity}
