"""Chooses how the clocks are kept, compares them, and finds the one that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    problems = [*_unsynchronised(clocks, head)]
    if spread > allowed:
        worst = _worst(offsets, margins)
        ahead = f"{offsets[worst] - _median(offsets):+.6f} s"
        if unasked:
            text = f"{ahead} from {clocks[worst]['source']}, give or take {margins[worst]:.6f} s"
        else:
            text = f"{ahead} from {_others(clocks, worst)}"
        problems += [
            f"{worst}: its clock is {text}; the clocks of the cluster {'may be' if unasked else 'are'} "
            f"{spread:.6f} s apart, {allowed:.6f} s are allowed (time_sync_max_spread)",
            *_uncompared(unasked, head),
        ]
    return {"spread": spread, "problems": problems}


def _unsynchronised(clocks: Clocks, head: str) -> Iterator[str]:
    for name, clock in clocks.items():
        if not clock["synchronised"]:
            yield (
                f"{name}: its clock is not synchronised ({clock['source']}); `chronyc sources` there "
                "lists its sources, and those that answer; without outbound "
                f"NTP have the hosts follow the clock of {head}: -e time_sync_mode=head"
            )


def _uncompared(unasked: list[str], head: str) -> Iterator[str]:
    if unasked:
        yield (
            f"{', '.join(unasked)}: {head} did not answer over NTP (UDP port 123), so its clock and theirs "
            "were not compared; where that port is open, the figure is far smaller"
        )


def _worst(offsets: Mapping[str, float], margins: Mapping[str, float]) -> str:
    """Return the host that may be furthest from most others; the first of several."""
    median = _median(offsets)
    return max(offsets, key=lambda name: abs(offsets[name] - median) + margins[name])


def _median(offsets: Mapping[str, float]) -> float:
    ordered = sorted(offsets.values())
    return ordered[(len(ordered) - 1) // 2]


def _others(clocks: Clocks, worst: str) -> str:
    if len(clocks) > 2:
        return "most of the others"
    return next((name for name in clocks if name != worst), "the true time")


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_clock_mode": clock_mode, "muster_spread": compare}
