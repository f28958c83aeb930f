"""The outcome of verify.yml: every check of every host, and the failed ones as lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    from muster.deploy.core.text.fold import HostMessage, fold_messages

    failed = [check for check in checks if not check["ok"]]
    messages = [HostMessage(str(check["host"]), f"{check['id']}: {check['detail']}") for check in failed]
    return "\n".join(map(str, fold_messages(messages)))


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_outcome": outcome, "muster_failures": failures}
