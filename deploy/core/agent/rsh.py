"""mpirun's remote shell, through the agents: ``rsh.py HOST COMMAND ...`` runs the command on HOST.

mpirun starts this instead of ssh (plm_ssh_agent, plm_rsh_agent), as ``muster-rsh`` on PATH. The command
travels from this host's agent through the driver to the agent of HOST, which starts it. So Open MPI's
daemon on every host is a child of that host's agent, and no host needs to log in to another. Like ssh, it
joins the words of the command with spaces, because they were quoted for a shell; exits with its status.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import socket
import sys

# mpirun passes the name of its control interface to every daemon. Names differ, so each host replaces it.
INTERFACE = re.compile(r'((?:prte_if|oob_tcp_if)_include) "?[^" ]+"?')
OWN_INTERFACE = r'\1 "$MUSTER_INTERFACE"'


def for_sh(command: str, login_shell: str) -> str:
    """mpirun's command, for the agent's sh. mpirun writes it for the login shell of its user.

    (PRRTE, src/mca/plm/ssh/plm_ssh_module.c, setup_shell: it assumes the same shell on the other hosts.)
    """
    if os.path.basename(login_shell) in ("csh", "tcsh"):
        return f"exec {shlex.quote(login_shell)} -f -c {shlex.quote(command)}"  # -f: without ~/.cshrc
    return command


def login_shell() -> str:
    """The login shell of this user; empty if no user database has the user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""


if __name__ == "__main__":
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.path.join(os.environ["MUSTER_AGENT"], "agent"))
    stream = connection.makefile("rwb")
    command = INTERFACE.sub(OWN_INTERFACE, " ".join(sys.argv[2:]))
    command = for_sh(command, login_shell())
    hello = {"hello": "shell", "host": sys.argv[1], "command": command}
    stream.write(json.dumps(hello).encode() + b"\n")
    stream.flush()
    answer = stream.readline()
    # No answer: the agent is gone, and with it the job. ssh exits with 255 when its connection breaks.
    code = json.loads(answer)["code"] if answer else 255
    sys.exit(code if code >= 0 else 128 - code)
