"""The hosts of a playbook that are not all hosts of the file: a few of them, or some that left it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..console.text import clip
from ..errors import UsageError
from ..hosts import hostfile
from ..hosts.hostfile import Host
from ..hosts.name_patterns import InvalidValue, all_names


def limit(hosts: Sequence[Host], names: str, folder: Path) -> str:
    """Ansible's --limit for hosts that are added: these, and the hosts that have to know them.

    Those are the first host, whose clock the others compare theirs with, hosts that have the cluster's key,
    and hosts with a firewall, as the last setup recorded them in `folder`.
    """
    chosen = hostfile.named(names, hosts, "--limit")
    known = _known(folder)
    affected = {name for name, host in known.items() if host.get("holds_key") or host.get("has_firewall")}
    wanted = chosen | affected | ({hosts[0].name} if known else set())
    return ",".join(host.name for host in hosts if host.name in wanted)


def leaving(hosts_file: Path, names: str) -> tuple[str, ...]:
    """The names of hosts to clean, which are no longer in the hosts file."""
    try:
        wanted = tuple(sorted(all_names(names)))
    except InvalidValue as invalid:
        raise UsageError(f"--remove {clip(names)}: {invalid}") from None
    if still := sorted({*wanted} & {host.name for host in hostfile.load(hosts_file)}):
        raise UsageError(
            f"--remove: {', '.join(still)} still in {hosts_file}; take the line out of it first, or, to undo "
            f"setup there and keep the line: muster teardown -- --limit {','.join(still)}"
        )
    hostfile.parse("\n".join(wanted), "--remove")  # Ansible takes other characters for a pattern
    return wanted


def note_leaving(hosts_file: Path, names: Sequence[str]) -> None:
    """Note hosts in `.muster/left`, as setup does for those that it finds missing from the hosts file."""
    folder = hosts_file.parent / ".muster"
    noted = {host.name for host in hostfile.left_beside(hosts_file)}
    known = _known(folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "left").open("a", encoding="utf-8") as left:
        left.writelines(f"{_line(name, known.get(name, {}))}\n" for name in names if name not in noted)


def _line(name: str, known: Mapping[str, Any]) -> str:
    user = f" user={known['user']}" if known.get("user") else ""
    port = f" port={known['ssh_port']}" if known.get("ssh_port") else ""
    return f"{name}{user}{port}"


def _known(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """What setup recorded of each host."""
    try:
        record = json.loads((folder / "hosts.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: host for name, host in record.items() if isinstance(host, dict)} if record else {}
