"""What failed in a setup, and what was undone, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Hosts = Mapping[str, Mapping[str, Any]]
HEADS = ("host", "failed at", "undone")


def failed(names: Iterable[str], hostvars: Hosts) -> list[str]:
    """Return the hosts on which a task failed, and those that were lost or not brought back."""
    return [
        name for name in names if hostvars[name].get("undo_cause", True) or "undo_left" not in hostvars[name]
    ]


def table(names: Iterable[str], hostvars: Hosts, previews: bool = False) -> str:
    """Return a line for each host, then the messages of the tasks that failed.

    `previews`: with --check there is nothing to undo.
    """
    from muster.deploy.core.text.text import table as aligned

    rows = [HEADS]
    messages = []
    for name in names:
        host = hostvars[name]
        cause = host.get("undo_cause", {"task": "not reached any more"})
        task = str(cause.get("task", "-"))
        of_all = " (of all hosts)" if cause.get("is_of_all") else ""
        rows.append((name, f"{task}{of_all}", _undone(name, host, previews)))
        if "result" in cause:
            messages.append(f"{name}: {_message(cause['result']).removeprefix(f'{name}: ')}")
    return "\n".join([*aligned(rows), *messages])


def _undone(name: str, host: Mapping[str, Any], previews: bool) -> str:
    if previews:
        return "nothing was changed (--check)"
    if problem := host.get("undo_problem"):
        again = f"run muster setup again, or muster setup --remove {name}"
        return f"not all: {' '.join(str(problem).split())}; {again}"
    if "undo_left" not in host:
        return f"nothing; when it answers, run muster setup again, or muster setup --remove {name}"
    left = []
    if host.get("undo_edited"):
        left.append(f"what somebody else has changed since: {' '.join(host['undo_edited'])}")
    if host["undo_left"]:
        left.append(f"packages, which teardown removes: {' '.join(host['undo_left'])}")
    return f"all but {', and '.join(left)}" if left else "all"


def _message(result: Mapping[str, Any]) -> str:
    """Return what a task said when it failed: the errors that its command printed, else its message."""
    items = [item for item in result.get("results", ()) if item.get("failed")]
    result = items[0] if items else result
    lines = [line.strip() for line in str(result.get("stderr", "")).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E: ", "Error"))] or lines[-1:]
    return "; ".join(errors) or str(result.get("msg", "no message"))


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_undo_failed": failed, "muster_undo_table": table}
