"""What to do about a host that is not reached, by the kind of the problem: the same for both SSH clients."""

from __future__ import annotations

import socket

_REMEDIES = {
    "ssh.host-key-changed": "either the host was installed anew, or someone is in between; if you know why: "
    "{forget}, then confirm the new key with: {login} (after muster setup: run it again)",
    "ssh.host-key-unknown": "compare the fingerprint with the host's own, and confirm it once with: {login}",
    "ssh.host-key-revoked": "do not log in there; give the host a new key, and pin that one",
    "ssh.login-refused": "add the public key there",
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


def remedy(kind: str, name: str, login: str, forget: str) -> str:
    """What to do about a problem with the host of this name.

    `login`: the command that logs in there by hand, with the same configuration. `forget`: the command that
    takes its key out of known_hosts.
    """
    advice = _REMEDIES.get(kind, "try: {login}").format(login=login, forget=forget)
    if kind == "ssh.port-refused" and is_own_name(name):
        advice += f"; {name} is this machine: as localhost, alone in its hosts file, it needs no SSH"
    return advice


def is_own_name(name: str) -> bool:
    """Whether a host has the name of this machine, with its domain or without."""
    own = socket.gethostname().lower()
    return name.lower() in {own, own.partition(".")[0]}
