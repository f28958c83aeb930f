"""The hosts of a playbook that are not all hosts of the file: a few of them, or some that left it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..console.text import clip
from ..errors import UsageError
from ..hosts import hostfile, setup_record
from ..hosts.hostfile import Host
from ..hosts.name_patterns import InvalidValue, all_names


def limit(hosts: Sequence[Host], names: str, folder: Path) -> str:
    """Ansible's --limit for hosts that are added: these, and the hosts that have to know them.

    Those are the first host, whose clock the others compare theirs with, hosts that have the cluster's key,
    and hosts with a firewall, as the last setup recorded them in `folder`; not those that it left out.
    """
    chosen = hostfile.named(names, hosts, "--limit")
    known = {name: host for name, host in setup_record.load(folder).items() if not host.get("left_out")}
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
