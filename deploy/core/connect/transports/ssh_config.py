"""The route to a host. OpenSSH itself reads its configuration.

`ssh -G` follows ~/.ssh/config with all its Include, Match and tokens: what works with `ssh node1` works here.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...errors import UsageError
from ...hosts.hostfile import Host
from ...wire.users import expanded, home, own_name

DEFAULT_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Route:
    """The route to a host: the settings of `ssh -G` that Muster uses."""

    name: str
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    identities_only: bool
    certificate_files: tuple[str, ...]
    identity_agent: str | None
    """The socket of the agent for keys, if one is used."""
    known_hosts_files: tuple[str, ...]
    revoked_host_keys: str | None
    host_key_alias: str | None
    proxy_command: str | None
    connect_seconds: int
    ssh: tuple[str, ...]
    """The command that logs in there by hand, with the same configuration."""
    user_known_hosts: tuple[str, ...]
    """The files for keys that a person confirms: every file of UserKnownHostsFile, also absent ones."""
    known_hosts_command: bool
    """Whether a command names known keys (KnownHostsCommand)."""
    default_identities: bool
    """Whether the identity files are those that ssh tries by default."""
    missing_identities: tuple[str, ...]
    """The identity files that the configuration names and that do not exist."""
    strict: bool
    """Whether ssh asks nobody about an unknown key (StrictHostKeyChecking yes, BatchMode yes)."""

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
    configuration = ("-F", str(ssh_config)) if ssh_config else ()
    return _route(host.name, done.stdout, configuration, login_command(host, ssh_config))


def _route(name: str, answer: str, configuration: tuple[str, ...], ssh: tuple[str, ...]) -> Route:
    settings: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)

    def setting(key: str) -> str | None:
        value = settings.get(key, ["none"])[0]
        return None if value == "none" else value

    proxy, jump = setting("proxycommand"), setting("proxyjump")
    if jump:
        proxy = proxy_of_jump(jump, configuration)
    known_hosts = " ".join(settings.get("userknownhostsfile", []) + settings.get("globalknownhostsfile", []))
    seconds = setting("connecttimeout")
    hostname, user, port = setting("hostname") or name, setting("user") or "", setting("port") or "22"
    alias = setting("hostkeyalias") or name
    tokens = _tokens({"n": name, "h": hostname, "r": user, "p": port, "k": alias}, jump or "")

    def paths(written: list[str]) -> list[str]:
        return [_expanded(path, tokens) for path in written if path != "none"]

    identities = settings.get("identityfile", [])
    by_default = all(re.fullmatch(r"~/\.ssh/id_\w+", path) for path in identities)
    found = tuple(path for path in paths(identities) if _is_file(path) or _is_file(f"{path}.pub"))
    revoked = paths(settings.get("revokedhostkeys", []))
    return Route(
        name=name,
        hostname=hostname,
        user=user,
        port=int(port),
        identity_files=found,
        identities_only=setting("identitiesonly") == "yes",
        certificate_files=tuple(filter(_is_file, paths(settings.get("certificatefile", [])))),
        identity_agent=_agent_socket(settings.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        known_hosts_files=tuple(filter(_is_file, paths(shlex.split(known_hosts)))),
        revoked_host_keys=revoked[0] if revoked else None,
        host_key_alias=setting("hostkeyalias"),
        proxy_command=proxy,
        connect_seconds=int(seconds) if seconds else DEFAULT_CONNECT_SECONDS,
        ssh=ssh,
        user_known_hosts=tuple(paths(shlex.split(" ".join(settings.get("userknownhostsfile", []))))),
        known_hosts_command=setting("knownhostscommand") is not None,
        default_identities=by_default,
        missing_identities=tuple(path for path in paths(identities) if not (by_default or path in found)),
        strict=setting("stricthostkeychecking") in {"yes", "true"} or setting("batchmode") == "yes",
    )


def proxy_of_jump(jump: str, configuration: Sequence[str]) -> str:
    """The proxy command that goes through jump hosts (ProxyJump) with these options of ssh."""
    *before, last = jump.split(",")
    through = ("-J", ",".join(before)) if before else ()
    # As a URI it may have a user and a port.
    gate = last if last.startswith("ssh://") else f"ssh://{last}"
    return shlex.join(["ssh", *configuration, *through, "-W", "[%h]:%p", gate])


def _tokens(route: dict[str, str], jump: str) -> dict[str, str]:
    """The value of each token in the paths of a configuration (ssh_config(5), TOKENS).

    `route`: the tokens of the host that it leads to.
    """
    own_host = socket.gethostname()
    hashed = f"{own_host}{route['h']}{route['p']}{route['r']}{jump if jump and _hashes_jump() else ''}"
    return {
        **route,
        **{"d": ssh_home(), "u": own_name(), "i": str(os.getuid()), "%": "%", "j": jump},
        **{"l": own_host, "L": own_host.partition(".")[0]},
        "C": hashlib.sha1(hashed.encode(), usedforsecurity=False).hexdigest(),
    }


@cache
def _hashes_jump() -> bool:
    """Whether the %C of this machine's ssh depends on the jump host: since OpenSSH 9.6."""
    done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False)
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", done.stdout + done.stderr)
    return version is not None and (int(version[1]), int(version[2])) >= (9, 6)


def _expanded(path: str, tokens: dict[str, str]) -> str:
    """A path as ssh reads it: tokens, `${NAME}` of the environment, and `~` (ssh_config(5), TOKENS)."""
    path = re.sub(r"%([a-zA-Z%])", lambda token: tokens.get(token[1], token[0]), path.strip('"'))
    path = re.sub(r"\$\{(\w+)\}", lambda name: os.environ.get(name[1], ""), path)
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


def _agent_socket(written: str, tokens: dict[str, str]) -> str | None:
    """The socket that IdentityAgent names: a path, a variable of the environment, or none."""
    if written == "none":
        return None
    if written == "SSH_AUTH_SOCK" or re.fullmatch(r"\$\w+", written):
        return os.environ.get(written.removeprefix("$")) or None
    return _expanded(written, tokens)
