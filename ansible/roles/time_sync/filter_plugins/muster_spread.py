"""Compares the clocks of a cluster: how far two of them may be apart, and which one is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Clocks = Mapping[str, Mapping[str, Any]]
"""The measurements of the hosts of a run: `synchronised`, `offset`, `margin`, `source`, `apart`.

In seconds. `offset`: ahead of its source, give or take `margin`. `apart`: ahead of the head, or None where
the head did not answer.
"""


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
        return {"muster_spread": compare}
