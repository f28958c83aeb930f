"""What setup records of each host in `.muster/hosts.json`, for later runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

Hosts = Mapping[str, Mapping[str, Any]]


def record(
    known: Hosts, earlier: Hosts, listed: Collection[str], clock_mode: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the record: the known hosts, and earlier hosts, which still have what setup made.

    An earlier host that is unknown now left the hosts file, or is `listed` there and setup left it out.
    `clock_mode`: of this run, if it chose one.
    """
    mode = {"clock_mode": clock_mode} if clock_mode else {}
    kept = {name: dict(host) for name, host in earlier.items() if name not in known}
    for name, host in kept.items():
        host["left_out"] = name in listed
    return kept | {name: dict(host) | mode for name, host in known.items()}


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_record": record}
