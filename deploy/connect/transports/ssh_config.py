"""How to reach a host. OpenSSH itself reads its configuration.

`ssh -G` follows ~/.ssh/config with all its Include, Match and tokens: what works with `ssh node1` works here.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ...hosts.hostfile import Host

DEFAULT_CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Route:
    """How to reach a host: the words of `ssh -G` that matter here."""

    name: str
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    identities_only: bool
    known_hosts_files: tuple[str, ...]
    host_key_alias: str | None
    proxy_command: str | None
    connect_seconds: int

    @property
    def known_as(self) -> str:
        """The name under which known_hosts has this host: its alias (HostKeyAlias), or address and port."""
        return self.host_key_alias or self.server_name

    @property
    def server_name(self) -> str:
        """The name that a connection to this address and port looks up."""
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def resolve(host: Host, ssh_config: Path | None) -> Route:
    """The route to a host, by OpenSSH's own reading of its configuration."""
    configuration = ("-F", str(ssh_config)) if ssh_config else ()
    user = ("-l", host.user) if host.user else ()
    port = ("-p", str(host.port)) if host.port else ()
    try:
        done = subprocess.run(
            ["ssh", "-G", *configuration, *user, *port, "--", host.name],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("no ssh on PATH; install the OpenSSH client") from None
    if done.returncode != 0:
        raise UsageError(done.stderr.strip())
    return _route(host.name, done.stdout, configuration)


def _route(name: str, answer: str, configuration: tuple[str, ...]) -> Route:
    said: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)

    def one(key: str) -> str | None:
        value = said.get(key, ["none"])[0]
        return None if value == "none" else value

    proxy = one("proxycommand")
    if jump := one("proxyjump"):
        *before, last = jump.split(",")
        through = ("-J", ",".join(before)) if before else ()
        # As a URI it may have a user and a port.
        gate = last if last.startswith("ssh://") else f"ssh://{last}"
        proxy = shlex.join(["ssh", *configuration, *through, "-W", "[%h]:%p", gate])
    known = " ".join(said.get("userknownhostsfile", []) + said.get("globalknownhostsfile", []))
    seconds = one("connecttimeout")
    return Route(
        name=name,
        hostname=one("hostname") or name,
        user=one("user") or "",
        port=int(one("port") or 22),
        identity_files=tuple(_existing(said.get("identityfile", []))),
        identities_only=one("identitiesonly") == "yes",
        known_hosts_files=tuple(_existing(shlex.split(known))),
        host_key_alias=one("hostkeyalias"),
        proxy_command=proxy,
        connect_seconds=int(seconds) if seconds else DEFAULT_CONNECT_SECONDS,
    )


def _existing(paths: list[str]) -> list[str]:
    expanded = (Path(path.strip('"')).expanduser() for path in paths)
    return [str(path) for path in expanded if path.is_file()]
