"""An agent over the OpenSSH client: every way to log in that `ssh HOST` has.

A detached driver uses it, because it only has the standard library. It connects from the job's head to the
other hosts by the head's own SSH configuration. The user's driver uses it on request, and where paramiko
cannot log in: with Kerberos, security keys, host certificates, and shared connections (ControlMaster).
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from ...errors import HostError, UsageError
from ...hosts.hostfile import Host
from .. import bootstrap
from ..pipe import KILLED, LostError, why_ended
from .process import ProcessPipe
from .ssh_config import login_command, resolve, ssh_options

# No question, no unknown host key, an end when a host is silent, and only this command. No agent for keys and
# no display is forwarded (-a, -x): an untrusted host could use them.
OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
}
SSH_FAILED = 255  # ssh(1): its exit status if ssh itself failed
# ConnectTimeout does not bound the login itself, which may ask a slow service for names.
LOGIN_SECONDS = 20.0

_TOO_MANY = "Too many authentication failures"
# Messages of ssh, and the kind of each problem. The first match counts.
_CAUSES = (
    # A jump host or ProxyCommand: ssh has no address for the host behind it.
    ("UNKNOWN port 65535", "ssh.proxy-ended"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "ssh.host-key-changed"),
    ("REVOKED HOST KEY", "ssh.host-key-revoked"),
    (" revoked by file ", "ssh.host-key-revoked"),
    ("Host key verification failed", "ssh.host-key-unknown"),
    ("Permission denied (", "ssh.login-refused"),
    (_TOO_MANY, "ssh.login-refused"),
    ("Could not resolve hostname", "ssh.name-unknown"),
    ("during banner exchange", "ssh.silent"),
    ("Connection refused", "ssh.port-refused"),
    ("timed out", "ssh.unreachable"),
    ("No route to host", "ssh.unreachable"),
    ("Network is unreachable", "ssh.unreachable"),
    ("open failed", "ssh.no-session"),
    ("Session open refused", "ssh.no-session"),
    ("session request failed", "ssh.no-session"),
    ("Connection closed by ", "ssh.closed"),
    ("Connection reset by ", "ssh.closed"),
)
# Lines that explain more than the last one: of a changed key, and of an unknown key.
_EXPLAINING = ("Offending ", " host key is known for ")
# Problems after which a person confirms a key: the command for that must ask about it.
_OF_HOST_KEYS = {"ssh.host-key-changed", "ssh.host-key-unknown"}
_LOUD = {"ssh.host-key-changed": "HOST KEY CHANGED: ", "ssh.host-key-revoked": "HOST KEY REVOKED: "}


def command(host: Host, python: str, flags: Sequence[str] = (), ssh_config: Path | None = None) -> list[str]:
    """The argv that starts an agent on the host; its last argument is quoted for the shell of sshd."""
    options = [argument for name, value in OPTIONS.items() for argument in ("-o", f"{name}={value}")]
    start = bootstrap.command(python)
    return ["ssh", "-T", "-a", "-x", *flags, *options, *ssh_options(host, ssh_config), "--", host.name, start]


class OpenSshPipe(ProcessPipe):
    """An agent as the command of `ssh HOST`.

    `ssh_config`: read in place of the user's own configuration. `head`: the host that logs in, if this is a
    detached driver. The configuration decides whether the user's connections are shared; a detached driver
    shares none.
    """

    def __init__(self, host: Host, python: str, *, ssh_config: Path | None = None, head: str = "") -> None:
        self._host, self._ssh_config = host, ssh_config
        self._name, self._python, self._head = host.name, python, head
        self._login = login_command(host, ssh_config)
        try:
            super().__init__(command(host, python, ["-S", "none"] if head else [], ssh_config))
        except OSError as error:
            text = f"no ssh on {head or 'this machine'}: {error.strerror}"
            raise HostError("ssh.failed", text, "install the OpenSSH client there") from None
        self._logged_in = self._await_login()

    def _await_login(self) -> bool:
        """Wait for the first output: the agent greets without being asked. False if ssh ends before that."""
        assert self._process.stdout is not None  # noqa: S101  # stdout=PIPE
        poll = select.poll()  # select(2) takes no file descriptor above 1023
        poll.register(self._process.stdout, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(LOGIN_SECONDS * 1000))

    def last_words(self, printed: str = "") -> LostError:
        """ssh's own reason, or how Python ended there."""
        status, lines = self.end_and_lines()
        if status == SSH_FAILED and not self._logged_in:
            return self._refused(lines or [printed or "no message"])
        if status == SSH_FAILED and lines:
            return LostError(
                f"the SSH connection broke: {lines[-1]}", "look at the host's console and its network"
            )
        # After a signal sshd reports no status, and ssh prints nothing.
        return why_ended(KILLED if status == SSH_FAILED else status, "\n".join(lines), printed, self._python)

    def _refused(self, lines: list[str]) -> LostError:
        """Why ssh could not log in."""
        text = "\n".join(lines)
        kind = next((kind for sign, kind in _CAUSES if sign in text), "ssh.failed")
        explaining = [line for line in lines if any(sign in line for sign in _EXPLAINING)]
        if not explaining:  # the error of a proxy comes first, and its consequence last
            explaining = lines[:1] if kind == "ssh.proxy-ended" else lines[-1:]
        reason = _LOUD.get(kind, "") + explaining[0]
        if self._head:
            return LostError(
                f"{self._head} cannot log in there: {reason}",
                f"a detached job needs that: try ssh {self._name} on {self._head}; setup.yml arranges it for"
                " the first host of the hosts file, and for those in ssh_trust_heads",
                kind=kind,
            )
        return LostError(reason, self._remedy("ssh.too-many-keys" if _TOO_MANY in text else kind), kind=kind)

    def _remedy(self, kind: str) -> str:
        """The remedy, with commands that have the same configuration."""
        login: Sequence[str] = self._login
        forget: Sequence[str] = ("ssh-keygen", "-R", self._name)
        if kind in _OF_HOST_KEYS:  # the configuration may forbid ssh to ask
            login = (*login[:1], "-o", "BatchMode=no", "-o", "StrictHostKeyChecking=ask", *login[1:])
        if kind in _OF_HOST_KEYS or kind == "ssh.login-refused":
            with contextlib.suppress(UsageError):  # ssh itself does not read its configuration
                route = resolve(self._host, self._ssh_config)
                forget = route.forgetting
                if kind == "ssh.login-refused" and route.missing_identities:
                    absent = (
                        f"correct IdentityFile: there is no {path}" for path in route.missing_identities
                    )
                    return "; ".join(absent)
                if kind == "ssh.host-key-unknown" and {*route.user_known_hosts} <= {os.devnull}:
                    kind = "ssh.no-known-hosts"
        remedy = REMEDIES.get(kind, "try: {login}")
        remedy = remedy.format(login=shlex.join(login), forget=shlex.join(forget))
        if kind == "ssh.port-refused" and is_own_name(self._name):
            remedy += (
                f"; {self._name} is this machine: as localhost, alone in its hosts file, it needs no SSH"
            )
        return remedy


REMEDIES = {
    "ssh.host-key-changed": "either the host was reinstalled, or someone is in between; if you know why: "
    "{forget}, then confirm the new key with: {login} (after muster setup: run it again)",
    "ssh.host-key-unknown": "compare the fingerprint with the host's own, and confirm it once with: {login}",
    "ssh.no-known-hosts": "UserKnownHostsFile keeps no key; name a file there that does, such as "
    "~/.ssh/known_hosts, then compare the fingerprint with the host's own, and confirm it once with: {login}",
    "ssh.host-key-revoked": "do not log in there; give the host a new key, and pin that one",
    "ssh.login-refused": "add the public key there, or name another account (user=); "
    "a key with a passphrase needs ssh-add first",
    "ssh.too-many-keys": "name the right key for this host in the SSH configuration, with IdentityFile and "
    "IdentitiesOnly yes; or raise MaxAuthTries in its sshd_config",
    "ssh.name-unknown": "correct the hosts file, or give it a HostName in ~/.ssh/config",
    "ssh.unreachable": "is the host up, the port open?",
    "ssh.port-refused": "does sshd run there? (port= sets another port)",
    "ssh.closed": "does its sshd run well, and take one more connection (MaxStartups)? after failed logins "
    "it refuses an address for some time (PerSourcePenalties); see its log",
    "ssh.no-session": "raise MaxSessions in its sshd_config (0 allows none); see its log",
    "ssh.silent": "is the host overloaded or frozen, or another service there? look at its console",
}
"""The remedies for hosts that are not reached, by the kind of the problem."""


def is_own_name(name: str) -> bool:
    """Whether a host has the name of this machine, with its domain or without."""
    own = socket.gethostname().lower()
    return name.lower() in {own, own.partition(".")[0]}
