"""How to reach a host. OpenSSH itself reads its configuration.

`ssh -G` follows ~/.ssh/config with all its Include, Match and tokens: what works with `ssh node1` works here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...common.users import expanded, home, own_name
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
    certificate_files: tuple[str, ...]
    identity_agent: str | None
    """The socket of the agent for keys, if an agent is to be asked."""
    known_hosts_files: tuple[str, ...]
    revoked_host_keys: str | None
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
    settings: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)

    def setting(key: str) -> str | None:
        value = settings.get(key, ["none"])[0]
        return None if value == "none" else value

    proxy = setting("proxycommand")
    if jump := setting("proxyjump"):
        *before, last = jump.split(",")
        through = ("-J", ",".join(before)) if before else ()
        # As a URI it may have a user and a port.
        gate = last if last.startswith("ssh://") else f"ssh://{last}"
        proxy = shlex.join(["ssh", *configuration, *through, "-W", "[%h]:%p", gate])
    known = " ".join(settings.get("userknownhostsfile", []) + settings.get("globalknownhostsfile", []))
    seconds = setting("connecttimeout")
    hostname, user, port = setting("hostname") or name, setting("user") or "", setting("port") or "22"
    tokens = {"d": home(), "u": own_name(), "i": str(os.getuid()), "%": "%"}
    tokens |= {"n": name, "h": hostname, "r": user, "p": port, "k": setting("hostkeyalias") or name}

    def paths(written: list[str]) -> list[str]:
        return [_expanded(path, tokens) for path in written if path != "none"]

    revoked = paths(settings.get("revokedhostkeys", []))
    return Route(
        name=name,
        hostname=hostname,
        user=user,
        port=int(port),
        identity_files=tuple(
            path
            for path in paths(settings.get("identityfile", []))
            if _is_file(path) or _is_file(f"{path}.pub")
        ),
        identities_only=setting("identitiesonly") == "yes",
        certificate_files=tuple(filter(_is_file, paths(settings.get("certificatefile", [])))),
        identity_agent=_agent_socket(settings.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        known_hosts_files=tuple(filter(_is_file, paths(shlex.split(known)))),
        revoked_host_keys=revoked[0] if revoked else None,
        host_key_alias=setting("hostkeyalias"),
        proxy_command=proxy,
        connect_seconds=int(seconds) if seconds else DEFAULT_CONNECT_SECONDS,
    )


def _expanded(path: str, tokens: dict[str, str]) -> str:
    """A path as ssh reads it: tokens, `${NAME}` of the environment, and `~` (ssh_config(5), TOKENS)."""
    path = re.sub(r"%([a-zA-Z%])", lambda token: tokens.get(token[1], token[0]), path.strip('"'))
    return str(Path(expanded(re.sub(r"\$\{(\w+)\}", lambda name: os.environ.get(name[1], ""), path))))


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def _agent_socket(written: str, tokens: dict[str, str]) -> str | None:
    """The socket that IdentityAgent names: a path, a variable of the environment, or none."""
    if written == "none":
        return None
    if written == "SSH_AUTH_SOCK" or re.fullmatch(r"\$\w+", written):
        return os.environ.get(written.removeprefix("$")) or None
    return _expanded(written, tokens)
