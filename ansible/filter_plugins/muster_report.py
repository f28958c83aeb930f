"""The obstacles of all hosts, or the checks of verify.yml, in one text, each once.

Each filter imports what it needs itself: see ../roles/gpu/filter_plugins/muster_gpus.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

NOT_REACHED = {"ok": False, "detail": "not reached, or stopped by an error"}


def outcome(
    hostvars: Mapping[str, Mapping[str, Any]],
    names: Iterable[str],
    roles: list[str],
    state: str,
    limited: bool,
) -> dict[str, Any]:
    """Return `ok`, `state` and `checks`. A host that was not reached has not passed.

    `limited`: whether --limit left hosts out; then hosts that were not examined do not count.
    """
    checks = [
        {"host": name} | dict(check)
        for name in names
        if not limited or "preflight_probe" in hostvars[name]
        for role in roles
        for check in hostvars[name].get(f"{role}_checks", [{"id": f"{role}.reached"} | NOT_REACHED])
    ]
    return {"ok": bool(checks) and all(check["ok"] for check in checks), "state": state, "checks": checks}


def failures(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return a line for each failed check; hosts that fail for the same reason share it."""
    return _folded(
        (check["host"], f"{check['id']}: {check['detail']}") for check in checks if not check["ok"]
    )


def unfit(
    everyone: Iterable[str], examined: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the obstacles of each host that has some; a host that could not be examined is one of them."""
    reached = set(examined)
    found = {}
    for name in everyone:
        host = hostvars[name]
        probe = host.get("preflight_probe", {})
        if name in reached:
            found[name] = list(host.get("preflight_problems", ()))
        elif "preflight_seen" in host and not probe.get("unreachable"):
            found[name] = ["cannot be examined; the reason is above"]
        else:
            from muster.deploy.features.setup.ansible_result import obstacle

            found[name] = [obstacle(probe)]
    return {name: problems for name, problems in found.items() if problems}


def report(problems: Mapping[str, Iterable[str]]) -> str:
    """Return a line for each obstacle; hosts that have the same obstacle share it."""
    return _folded((name, text) for name, texts in problems.items() for text in dict.fromkeys(texts))


def _folded(pairs: Iterable[tuple[str, str]]) -> str:
    from muster.deploy.core.text.fold import HostMessage, fold_messages

    return "\n".join(map(str, fold_messages(HostMessage(*pair) for pair in pairs)))


def names(hosts: Iterable[str]) -> str:
    """Return the names of hosts as ranges."""
    from muster.deploy.core.text.fold import fold_names

    return fold_names(hosts)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a line for each row, in columns."""
    from muster.deploy.core.text.text import table as aligned

    return aligned(rows)


class FilterModule:
    """Ansible finds filters by this name."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return the filters."""
        return {
            "muster_outcome": outcome,
            "muster_failures": failures,
            "muster_unfit": unfit,
            "muster_report": report,
            "muster_names": names,
            "muster_table": table,
        }
