"""Chooses how the clocks are kept, from the time servers that each host reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SERVERS = '-e \'{"time_sync_servers": ["NAME"]}\''


def clock_mode(
    asked: Mapping[str, Mapping[str, Any]], head: str, servers: str, is_chosen: bool
) -> dict[str, Any]:
    """Return the `mode`, a `note` for the user, and the `problems` of hosts that no time server answers.

    `asked`: the outcome of ask.py on each host that would ask `servers`; a host whose clock another program
    keeps is absent. `is_chosen`: whether the user chose the mode or the servers.
    """
    silent = {name: outcome["silent"] for name, outcome in asked.items() if not outcome["reached"]}
    if not silent or is_chosen or head not in asked:
        problems = {name: _problem(names, head) for name, names in silent.items()}
        return {"mode": "public", "note": "", "problems": problems}
    who = "no host" if len(silent) == len(asked) else f"{len(silent)} of {len(asked)} hosts do not"
    reach = "reaches" if len(silent) == len(asked) else "reach"
    note = (
        f"{who} {reach} {servers} over NTP (UDP port 123), so the others follow the clock of {head} "
        f"(time_sync_mode=head); to name servers of your site: {SERVERS}"
    )
    return {"mode": "head", "note": note, "problems": {}}


def _problem(silent: list[str], head: str) -> str:
    return (
        f"too few of its time servers answer over NTP, UDP port 123 ({', '.join(silent)}); let it through, "
        f"name others ({SERVERS}), or have the hosts follow the clock of {head}: -e time_sync_mode=head"
    )


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_clock_mode": clock_mode}
