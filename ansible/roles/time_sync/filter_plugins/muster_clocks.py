"""Chooses how the clocks are kept, compares them, and finds the one that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Clocks = Mapping[str, Mapping[str, Any]]
"""The measurements of the hosts of a run: `synchronised`, `offset`, `margin`, `source`, `apart`.

In seconds. `offset`: ahead of its source, give or take `margin`. `apart`: ahead of the head, or None where
the head did not answer.
"""
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
        text = (
            "too few of its time servers answer over NTP, UDP port 123 ({}); let it through, "
            f"name others ({SERVERS}), or have the hosts follow the clock of {head}: -e time_sync_mode=head"
        )
        problems = {name: text.replace("{}", ", ".join(names), 1) for name, names in silent.items()}
        return {"mode": "public", "note": "", "problems": problems}
    who = (
        "no host reaches"
        if len(silent) == len(asked)
        else f"{len(silent)} of {len(asked)} hosts do not reach"
    )
    note = (
        f"{who} {servers} over NTP (UDP port 123), so the others follow the clock of {head} "
        f"(time_sync_mode=head); to name servers of your site: {SERVERS}"
    )
    return {"mode": "head", "note": note, "problems": {}}


def compare(clocks: Clocks, head: str, allowed: float) -> dict[str, Any]:
    """Return the `spread` of the clocks and their `problems`, a line each.

    The spread is between the host that is furthest ahead and the one furthest behind. All clocks are
    compared with the head's; if a host could not ask it, with the true time, and then two margins count.
    """
    unasked = [name for name, clock in clocks.items() if clock["apart"] is None]
    if unasked:
        offsets = {name: float(clock["offset"]) for name, clock in clocks.items()}
        margins = {name: float(clock["margin"]) for name, clock in clocks.items()}
    else:
        offsets = {name: float(clock["apart"]) for name, clock in clocks.items()} | {head: 0.0}
        margins = dict.fromkeys(offsets, 0.0)
    spread = max(offsets.values()) - min(offsets.values()) + sum(sorted(margins.values())[-2:])
    problems = [
        f"{name}: its clock is not synchronised ({clock['source']}); `chronyc sources` there "
        "lists its sources, and those that answer; without outbound "
        f"NTP have the hosts follow the clock of {head}: -e time_sync_mode=head"
        for name, clock in clocks.items()
        if not clock["synchronised"]
    ]
    if spread > allowed:
        problems.append(
            f"{_worst(clocks, offsets, margins)}; the clocks of the cluster {'may be' if unasked else 'are'} "
            f"{spread:.6f} s apart, {allowed:.6f} s are allowed (time_sync_max_spread)"
        )
    if spread > allowed and unasked:
        problems.append(
            f"{', '.join(unasked)}: {head} did not answer over NTP (UDP port 123), so its clock and theirs "
            "were not compared; where that port is open, the figure is far smaller"
        )
    return {"spread": spread, "problems": problems}


def _worst(clocks: Clocks, offsets: Mapping[str, float], margins: Mapping[str, float]) -> str:
    """Name the host that may be furthest from most others, the first of several, and how far it is."""
    ordered = sorted(offsets.values())
    median = ordered[(len(ordered) - 1) // 2]
    worst = max(offsets, key=lambda name: abs(offsets[name] - median) + margins[name])
    others = next((name for name in clocks if name != worst), "the true time")
    if any(clock["apart"] is None for clock in clocks.values()):
        others = f"{clocks[worst]['source']}, give or take {margins[worst]:.6f} s"
    elif len(clocks) > 2:
        others = "most of the others"
    return f"{worst}: its clock is {offsets[worst] - median:+.6f} s from {others}"


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_clock_mode": clock_mode, "muster_spread": compare}
