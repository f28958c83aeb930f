"""What to do about a host that is not reached, by the kind of the problem: the same for both SSH clients."""

from __future__ import annotations

import shlex

_REMEDIES = {
    "ssh.host-key-changed": "either the host was installed anew, or someone is in between; if you know why: "
    "ssh-keygen -R {known_as}, then confirm the new key with: ssh {name} (after muster setup: run it again)",
    "ssh.host-key-unknown": "compare the fingerprint with the host's own, and confirm it once with: "
    "ssh {name}",
    "ssh.host-key-revoked": "do not log in there; give the host a new key, and pin that one",
    "ssh.login-refused": "add the public key there",
    "ssh.name-unknown": "correct the hosts file, or give it a HostName in ~/.ssh/config",
    "ssh.unreachable": "is the host up, the port open?",
    "ssh.port-refused": "does sshd run there? (port= sets another port)",
    "ssh.closed": "does its sshd run well, and take one more connection (MaxStartups)? see its log",
    "ssh.no-session": "raise MaxSessions in its sshd_config (0 allows none); see its log",
    "ssh.silent": "is the host overloaded or frozen, or another service there? look at its console",
}


def remedy(kind: str, name: str, known_as: str) -> str:
    """What to do about a problem with the host of this name, which known_hosts files have as `known_as`."""
    return _REMEDIES.get(kind, "try: ssh {name}").format(name=name, known_as=shlex.quote(known_as))
