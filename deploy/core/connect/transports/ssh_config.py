"""The route to a host. OpenSSH itself reads its configuration.

`ssh -G` follows ~/.ssh/config with all its Include, Match and tokens: what works with `ssh node1` works here.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ...errors import UsageError
from ...hosts.hostfile import Host
from ...wire.users import expanded, home

DEFAULT_CONNECT_SECONDS = 10
OF_SSH = ("proxycommand", "proxyjump", "certificatefile", "revokedhostkeys", "knownhostscommand")
"""The settings that only the OpenSSH client can follow."""


@dataclass(frozen=True)
class Route:
    """The route to a host: the settings of `ssh -G` that Muster uses."""

    name: str
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None
    """The socket of the agent for keys, if one is used."""
    known_hosts_files: tuple[str, ...]
    host_key_alias: str | None
    connect_seconds: int
    ssh: tuple[str, ...]
    """The command that logs in there by hand, with the same configuration."""
    user_known_hosts: tuple[str, ...]
    """The files for keys that a person confirms: every file of UserKnownHostsFile, also absent ones."""
    default_identities: bool
    """Whether the identity files are those that ssh tries by default."""
    missing_identities: tuple[str, ...]
    """The identity files that the configuration names and that do not exist."""
    strict: bool
    """Whether ssh asks nobody about an unknown key (StrictHostKeyChecking yes, BatchMode yes)."""
    plain: bool
    """Whether paramiko can log in there as ssh does; else ssh itself does it."""

    @property
    def known_as(self) -> str:
        """The name under which known_hosts has this host: its alias (HostKeyAlias), or address and port."""
        server = self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"
        return self.host_key_alias or server

    @property
    def confirming(self) -> tuple[str, ...]:
        """The command that logs in there by hand, and asks about an unknown key."""
        return confirming(self.ssh) if self.strict else self.ssh


def confirming(ssh: Sequence[str]) -> tuple[str, ...]:
    """The command of ssh, made to ask about an unknown key whatever the configuration says."""
    return (*ssh[:1], "-o", "BatchMode=no", "-o", "StrictHostKeyChecking=ask", *ssh[1:])


def ssh_options(host: Host, ssh_config: Path | None) -> tuple[str, ...]:
    """The options with which `ssh` logs in to a host as this program does."""
    configuration = ("-F", str(ssh_config)) if ssh_config else ()
    user = ("-l", host.user) if host.user else ()
    port = ("-p", str(host.port)) if host.port else ()
    return (*configuration, *user, *port)


def login_command(host: Host, ssh_config: Path | None) -> tuple[str, ...]:
    """The command that logs in to a host by hand, with the same configuration."""
    return ("ssh", *ssh_options(host, ssh_config), host.name)


def resolve(host: Host, ssh_config: Path | None) -> Route:
    """The route to a host, by OpenSSH's own reading of its configuration."""
    options = ssh_options(host, ssh_config)
    try:
        done = subprocess.run(
            ["ssh", "-G", *options, "--", host.name], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UsageError("no ssh on PATH; install the OpenSSH client") from None
    if done.returncode != 0:
        raise UsageError(done.stderr.strip())
    return _route(host.name, done.stdout, login_command(host, ssh_config))


def _route(name: str, answer: str, ssh: tuple[str, ...]) -> Route:
    settings: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)

    def setting(key: str) -> str | None:
        value = settings.get(key, ["none"])[0]
        return None if value == "none" else value

    known_hosts = " ".join(settings.get("userknownhostsfile", []) + settings.get("globalknownhostsfile", []))
    seconds, identities = setting("connecttimeout"), settings.get("identityfile", [])

    def paths(written: list[str]) -> list[str]:
        return [_expanded(path) for path in written if path != "none"]

    by_default = all(re.fullmatch(r"~/\.ssh/id_\w+", path) for path in identities)
    found = tuple(path for path in paths(identities) if _is_file(path) or _is_file(f"{path}.pub"))
    known_hosts_files = tuple(filter(_is_file, paths(shlex.split(known_hosts))))
    agent = settings.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    has_tokens = any("%" in path or "${" in path for path in (*identities, known_hosts, agent))
    return Route(
        name=name,
        hostname=setting("hostname") or name,
        user=setting("user") or "",
        port=int(setting("port") or "22"),
        identity_files=found,
        identities_only=setting("identitiesonly") == "yes",
        identity_agent=_agent_socket(agent),
        known_hosts_files=known_hosts_files,
        host_key_alias=setting("hostkeyalias"),
        connect_seconds=int(seconds) if seconds else DEFAULT_CONNECT_SECONDS,
        ssh=ssh,
        user_known_hosts=tuple(paths(shlex.split(" ".join(settings.get("userknownhostsfile", []))))),
        default_identities=by_default,
        missing_identities=tuple(path for path in paths(identities) if not (by_default or path in found)),
        strict=setting("stricthostkeychecking") in {"yes", "true"} or setting("batchmode") == "yes",
        plain=not (has_tokens or any(map(setting, OF_SSH)) or any(map(_has_rules, known_hosts_files))),
    )


def proxy_of_jump(jump: str, configuration: Sequence[str]) -> str:
    """The proxy command that goes through jump hosts (ProxyJump) with these options of ssh."""
    *before, last = jump.split(",")
    through = ("-J", ",".join(before)) if before else ()
    # As a URI it may have a user and a port.
    gate = last if last.startswith("ssh://") else f"ssh://{last}"
    return shlex.join(["ssh", *configuration, *through, "-W", "[%h]:%p", gate])


def _expanded(path: str) -> str:
    """A path as ssh reads it, if it has no tokens."""
    path = path.strip('"')
    return str(Path(ssh_home() + path[1:] if re.match(r"~(/|$)", path) else expanded(path)))


def ssh_home() -> str:
    """The home folder that ssh uses for `~` and %d: that of the user database, not HOME."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return home()


def _is_file(path: str) -> bool:
    """Whether a file exists, also one that cannot be read: reading it gives the reason."""
    try:
        return Path(path).is_file()
    except PermissionError:  # of its folder
        return True


def _agent_socket(written: str) -> str | None:
    """The socket that IdentityAgent names: a path, a variable of the environment, or none."""
    if written == "none":
        return None
    if written == "SSH_AUTH_SOCK" or re.fullmatch(r"\$\w+", written):
        return os.environ.get(written.removeprefix("$")) or None
    return _expanded(written)


class KnownHosts(NamedTuple):
    """The lines of a known_hosts file, each with the type of its key and the key."""

    by_name: Mapping[str, list[tuple[str, str]]]
    hashed: list[tuple[str, str, str]]
    """Those with a hashed name, which comes first."""
    has_rules: bool
    """Whether some have a marker (@revoked, @cert-authority) or a pattern, which only ssh reads."""


@lru_cache(maxsize=8)
def known_hosts(text: str) -> KnownHosts:
    """The lines of a file by their names: a large cluster has a line for each host, and each host asks."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    hashed, has_rules = list[tuple[str, str, str]](), False
    for line in text.splitlines():
        names, kind, key = (*line.split(maxsplit=3), "", "", "")[:3]
        if not key or names.startswith("#"):
            continue
        if names.startswith("@") or {*"*?!"} & {*names}:
            has_rules = True
        elif names.startswith("|"):
            hashed.append((names, kind, key))
        else:
            for name in {*names.lower().split(",")}:
                by_name.setdefault(name, []).append((kind, key))
    return KnownHosts(by_name, hashed, has_rules)


def _has_rules(path: str) -> bool:
    with contextlib.suppress(OSError):  # the login gives the reason
        return known_hosts(Path(path).read_text(errors="replace")).has_rules
    return False
