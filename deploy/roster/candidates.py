"""The hosts that a user names: names, ranges, patterns of SSH aliases, an Ansible inventory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import HostfileError, UsageError
from ..hosts import hostfile
from ..hosts.hostfile import Host

# The names of a variable in Ansible, the present one first.
_HOST, _USER, _PORT = ((f"ansible_{name}", f"ansible_ssh_{name}") for name in ("host", "user", "port"))
_NOT_TAKEN = {
    "ansible_ssh_private_key_file": "IdentityFile",
    "ansible_private_key_file": "IdentityFile",
    "ansible_ssh_common_args": "ProxyJump, or its other options,",
    "ansible_ssh_extra_args": "its options",
}
"""Variables without a key in a hosts file, and the SSH configuration that replaces them."""
_SSH = {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", ""}


@dataclass(frozen=True)
class Candidate:
    """A host that may go into the hosts file."""

    host: Host
    origin: str = ""
    """Its name in its source, if that differs from the name of the host: `web1 of inventory.ini`."""
    note: str = ""
    """Its settings that a hosts file cannot contain, and what to write into the SSH configuration."""


def of_patterns(patterns: Sequence[str], aliases: Sequence[str]) -> list[Candidate]:
    """The hosts of names, ranges such as `node[01-16]`, and patterns such as `gpu-*` of SSH aliases."""
    names: list[str] = []
    for pattern in patterns:
        if {*pattern} & {*"*?"}:
            if not (matching := [alias for alias in aliases if fnmatchcase(alias, pattern)]):
                raise UsageError(f"{pattern}: no Host of the SSH configuration matches")
            names += matching
        else:
            names.append(pattern)
    return [Candidate(host) for host in _hosts("\n".join(dict.fromkeys(names)))] if names else []


def of_inventory(
    inventory: Mapping[str, Any], patterns: Sequence[str], aliases: Sequence[str], source: str
) -> tuple[list[Candidate], dict[str, str]]:
    """The hosts of an Ansible inventory, and those that cannot be added, each with its reason.

    `inventory`: the JSON of `ansible-inventory --list`. `patterns`: hosts, groups or patterns; all if empty.
    """
    variables = inventory.get("_meta", {}).get("hostvars", {})
    names = list(dict.fromkeys(_in_group(inventory, "all", frozenset())))
    if patterns:
        names = [name for pattern in patterns for name in _named(inventory, names, pattern, source)]
    taken: list[Candidate] = []
    refused: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            taken.append(_of_variables(name, variables.get(name, {}), {*aliases}, source))
        except UsageError as error:
            refused[name] = str(error)
    return taken, refused


def _named(inventory: Mapping[str, Any], names: Sequence[str], pattern: str, source: str) -> list[str]:
    if pattern in inventory:
        return list(_in_group(inventory, pattern, frozenset()))
    if not (matching := [name for name in names if fnmatchcase(name, pattern)]):
        groups = ", ".join(sorted(inventory.keys() - {"_meta"}))
        raise UsageError(f"{pattern}: no host and no group of {source}, which has the groups {groups}")
    return matching


def _in_group(inventory: Mapping[str, Any], group: str, above: frozenset[str]) -> Iterable[str]:
    """The hosts of a group and of the groups in it, in their order."""
    content = inventory.get(group, {})
    yield from content.get("hosts", ())
    for child in content.get("children", ()):
        if child not in above:
            yield from _in_group(inventory, child, above | {group})


def _of_variables(name: str, variables: Mapping[str, Any], aliases: set[str], source: str) -> Candidate:
    """A host by its variables; `UsageError` for a host that no hosts file can describe."""
    connection = _value(variables, ("ansible_connection",))
    if connection not in _SSH:
        raise UsageError(f"ansible_connection={connection}: Muster reaches hosts by SSH")
    address = _value(variables, _HOST)
    host_name = address if address and name not in aliases else name
    settings = [
        f"{key}={value}"
        for key, names in (("user", _USER), ("port", _PORT))
        if (value := _value(variables, names))
    ]
    (host,) = _hosts(" ".join([host_name, *settings]))
    notes = [
        f"{key}: write {instead} into ~/.ssh/config"
        for key, instead in _NOT_TAKEN.items()
        if key in variables
    ]
    return Candidate(host, f"{name} of {source}" if host_name != name else "", "; ".join(notes))


def _value(variables: Mapping[str, Any], names: Iterable[str]) -> str:
    """The value of the first of these variables that is set; empty for none."""
    for name in names:
        if name in variables:
            value = str(variables[name])
            if "{{" in value or len(value.split()) > 1:
                raise UsageError(
                    f"{name}={value}: write the value itself, Ansible fills it in only when it runs"
                )
            return value
    return ""


def _hosts(text: str) -> tuple[Host, ...]:
    """The hosts of lines of a hosts file; a mistake is a `UsageError`: the lines are of the command line."""
    try:
        return hostfile.parse(text)
    except HostfileError as error:
        raise UsageError("\n".join(problem.text for problem in error.problems)) from None
