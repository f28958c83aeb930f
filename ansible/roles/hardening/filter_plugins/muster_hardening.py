"""Describes what hardening changes in sshd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase


def sshd_changes(lines: str, base: Mapping[str, str]) -> list[str]:
    """Return the changes that lines of sshd_config(5) make to the settings of `sshd -T`."""
    pairs = (line.split(None, 1) for line in lines.splitlines() if line and not line.startswith("#"))
    changes = (_change(name, value, base.get(name.lower(), "")) for name, value in pairs)
    return ["sshd, for all accounts: " + "; ".join(filter(None, changes))]


def _change(name: str, value: str, before: str) -> str:
    """Return the change of one setting; "" if it stays. A list loses its items, or those after a minus."""
    before = before.replace("without-password", "prohibit-password")
    if value.startswith("-"):
        patterns, items = value[1:].split(","), before.split(",")
        gone = [item for item in items if any(fnmatchcase(item, pattern) for pattern in patterns)]
    elif "," in before:
        gone = [item for item in before.split(",") if item not in value.split(",")]
    else:
        return f"{name} {value} (was {before or 'unset'})" if value != before else ""
    return f"{name} without {', '.join(gone)}" if gone else ""


class FilterModule:
    """Ansible finds filters by this name."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return the filters."""
        return {"muster_sshd_changes": sshd_changes}
