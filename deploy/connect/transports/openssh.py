"""An agent over the OpenSSH client, for a driver that has nothing but the standard library: a detached one.

It runs on the job's head, and goes from there to the other hosts by the head's own SSH configuration.
"""

from __future__ import annotations

import signal

from ...errors import HostError
from ...hosts.hostfile import Host
from .. import bootstrap
from ..pipe import AGENT_KILLED, PYTHON_FAILED, SEE_MEMORY, LostError
from .process import ProcessPipe

# No question, no unknown host key, no connection shared with others, and an end when a host is silent.
OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": "10",
    "ControlPath": "none",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",
}
KILLED = 128 + signal.SIGKILL
SSH_FAILED = 255  # ssh(1): its own exit status when it is ssh that failed


def command(host: Host, python: str) -> list[str]:
    """The argv that starts an agent on the host; its last word is quoted, as sshd gives it to a shell."""
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    user = ["-l", host.user] if host.user else []
    port = ["-p", str(host.port)] if host.port else []
    return ["ssh", "-T", *options, *user, *port, "--", host.name, bootstrap.command(python)]


class OpenSshPipe(ProcessPipe):
    """An agent as the command of `ssh HOST`."""

    def __init__(self, host: Host, python: str, head: str) -> None:
        self._name, self._python, self._head = host.name, python, head
        try:
            super().__init__(command(host, python))
        except OSError as error:
            text = f"no ssh on {head}: {error.strerror}"
            raise HostError("ssh.failed", text, "install the OpenSSH client there") from None

    def last_words(self, said: str = "") -> LostError:
        """ssh's own reason, or how Python ended there."""
        status, said = self.end(said)
        if status == KILLED:
            return LostError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
        if status == SSH_FAILED:
            return LostError(
                f"{self._head} cannot log in there: {said}",
                f"a detached job needs that: try ssh {self._name} on {self._head}; setup.yml arranges it for"
                " the first host of the hosts file, and for those in ssh_trust_heads",
                kind="ssh.failed",
            )
        return LostError(
            f"the agent ended with status {status}: {said}",
            PYTHON_FAILED,
            kind="python.failed",
        )
