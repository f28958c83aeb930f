"""The obstacles of all hosts in one text, each once.

Each filter imports what it needs itself: see muster_gpus.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# As in the inventory plugin: any Ansible finds the package `muster` in the folder that holds ansible/.
MUSTER = sys.modules.setdefault("muster", ModuleType("muster"))
MUSTER.__path__ = [str(Path(__file__).resolve().parents[4])]


def unfit(
    everyone: Iterable[str], examined: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the obstacles of each host that has some; a host that could not be examined is one of them."""
    reached = set(examined)
    found = {
        name: list(hostvars[name].get("preflight_problems", ()))
        if name in reached
        else [_unexamined(hostvars[name])]
        for name in everyone
    }
    return {name: problems for name, problems in found.items() if problems}


def report(problems: Mapping[str, Iterable[str]]) -> str:
    """Return a line for each obstacle; hosts that have the same obstacle share it."""
    from muster.deploy.core.text.fold import HostMessage, fold_messages

    messages = (HostMessage(name, text) for name, texts in problems.items() for text in dict.fromkeys(texts))
    return "\n".join(map(str, fold_messages(messages)))


def names(hosts: Iterable[str]) -> str:
    """Return the names of hosts as ranges."""
    from muster.deploy.core.text.fold import fold_names

    return fold_names(hosts)


def _unexamined(host: Mapping[str, Any]) -> str:
    """Return why a host could not be examined, from the result of the first task that asks it."""
    from muster.deploy.features.setup.ansible_result import obstacle

    probe = host.get("preflight_probe", {})
    if "preflight_seen" in host and not probe.get("unreachable"):
        return "cannot be examined; the reason is above"
    return obstacle(probe)


class FilterModule:
    """Ansible finds filters by this name."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return the filters."""
        return {"muster_unfit": unfit, "muster_report": report, "muster_names": names}
