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
from collections.abc import Mapping
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
MOST_KEYS = 5
"""A server accepts 6 tries by default (MaxAuthTries)."""


@dataclass(frozen=True)
class Route:
    """The route to a host: the settings of `ssh -G` that Muster uses."""

    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    known_hosts_files: tuple[str, ...]
    host_key_alias: str | None
    connect_seconds: int
    user_known_hosts: tuple[str, ...]
    """The files for keys that a person confirms: every file of UserKnownHostsFile, also absent ones."""
    missing_identities: tuple[str, ...]
    """The identity files that the configuration names and that do not exist."""
    plain: bool
    """Whether paramiko may log in there: with key files, and no more than the settings above.

    Else the OpenSSH client does it.
    """

    @property
    def known_as(self) -> str:
        """The name under which known_hosts has this host: its alias (HostKeyAlias), or address and port."""
        server = self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"
        return self.host_key_alias or server

    @property
    def forgetting(self) -> tuple[str, ...]:
        """The command that removes the key of the host from its known_hosts file."""
        file = next(iter(self.user_known_hosts), "")
        elsewhere = ("-f", file) if file and file != str(Path(ssh_home(), ".ssh", "known_hosts")) else ()
        return ("ssh-keygen", "-R", self.known_as, *elsewhere)


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
    return _route(host.name, done.stdout)


def _route(name: str, answer: str) -> Route:
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
    has_tokens = "%" in known_hosts or "${" in known_hosts
    asks_agent = setting("identitiesonly") != "yes" and _has_agent(settings.get("identityagent", [""])[0])
    has_keys = 0 < len(found) <= MOST_KEYS
    has_rules = any(map(setting, OF_SSH)) or any(map(_has_rules, known_hosts_files))
    return Route(
        hostname=setting("hostname") or name,
        user=setting("user") or "",
        port=int(setting("port") or "22"),
        identity_files=found,
        known_hosts_files=known_hosts_files,
        host_key_alias=setting("hostkeyalias"),
        connect_seconds=int(seconds) if seconds else DEFAULT_CONNECT_SECONDS,
        user_known_hosts=tuple(paths(shlex.split(" ".join(settings.get("userknownhostsfile", []))))),
        missing_identities=tuple(path for path in paths(identities) if not (by_default or path in found)),
        plain=has_keys and not (has_tokens or asks_agent or has_rules),
    )


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


def _has_agent(named: str) -> bool:
    """Whether ssh asks an agent for keys: the one that IdentityAgent names, or that of the environment."""
    return named != "none" and bool(named not in {"", "SSH_AUTH_SOCK"} or os.environ.get("SSH_AUTH_SOCK"))


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
