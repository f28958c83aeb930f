"""The longest time without a byte of output of each command, on slow hosts, a slow engine and a slow index.

    .venv/bin/python benchmarks/silence.py                 # every command, on a terminal and on a pipe
    .venv/bin/python benchmarks/silence.py check env.list  # these commands

A host is a process of this machine behind a `ssh` whose login takes 8 s on node3. `--answer 4` delays all
that node3 sends by so many seconds as well. Programs beside Muster are slow too: docker, its engine, salloc,
and the package index. Every command may end with an error; only its silence is measured. A command that ends
before the slow part has answered proves nothing, and is an error here.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shlex
import socketserver
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.deploy.core.text.progress import MOST_PIPE_SECONDS, SHARE
from tests.local.test_silent_commands import ENGINE, HOSTS, PROGRAMS  # from the checkout

BIN = Path(sys.executable).parent
SLOW_SECONDS, MOST_SECONDS = 8, 3.0
MUSTER = BIN / "muster"

# `ssh -G` reads the configuration, which is quick. Any other call logs in: to a process with its own home.
SSH = f"""#!{sys.executable} -IS
import os, subprocess, sys, threading, time
if "-G" in sys.argv:
    os.execv("/usr/bin/ssh", ["ssh", *sys.argv[1:]])
slow = any("node3" in argument for argument in sys.argv)
time.sleep(float(os.environ["SLOW_LOGIN"]) if slow else 0)
if "muster agent" not in sys.argv[-1]:
    sys.stderr.write("ssh: connect to host node port 22: Connection refused\\n")
    sys.exit(255)  # so Ansible changes nothing of this machine
host = sys.argv[-2]
os.environ["HOME"] = os.path.join(os.environ["HOSTS_HOME"], host)
os.makedirs(os.environ["HOME"], exist_ok=True)
delay = float(os.environ["SLOW_ANSWER"]) if slow else 0
if not delay:
    os.execv("/bin/sh", ["sh", "-c", sys.argv[-1]])
agent = subprocess.Popen(["sh", "-c", sys.argv[-1]], stdout=subprocess.PIPE)
while piece := agent.stdout.read1(1 << 16):
    threading.Timer(delay, lambda piece=piece: os.write(1, piece)).start()
time.sleep(delay)
sys.exit(agent.wait())
"""
SLOW_PROGRAM = f'#!/bin/sh\nsleep {SLOW_SECONDS}\necho "$0: no such service here" >&2\nexit 1\n'


@dataclass(frozen=True)
class Case:
    """The arguments of a command, and what it waits for."""

    slow: str
    arguments: str = ""
    terminal: bool = True
    """Whether it is measured on a terminal too."""


HOST, DOCKER = "a login", "docker, which has the terminal"
CASES: Mapping[str, Case] = {
    **{name: Case(HOST, arguments) for name, arguments in HOSTS.items()},
    **{name: Case(HOST) for name in ("setup", "verify", "rotate-keys", "teardown")},
    **{name: Case(DOCKER, arguments, terminal=False) for name, arguments in PROGRAMS.items()},
    **{name: Case("the container engine", arguments) for name, arguments in ENGINE.items()},
    # Forms of a command that wait for something else, or for longer.
    "run, a slow program": Case(f"{HOST}, and then the program", f"-- sleep {SLOW_SECONDS}"),
    "launch, a slow index": Case("a package index", "--requirements requirements.txt program.py"),
    "launch, Slurm": Case("salloc", "--slurm='-N 1' program.py"),
}


class SlowServer(socketserver.BaseRequestHandler):
    """Answers each request late, with an error."""

    def handle(self) -> None:
        self.request.recv(1 << 16)
        time.sleep(SLOW_SECONDS)
        self.request.sendall(b"HTTP/1.1 500 Slow\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class SlowIndex(socketserver.ThreadingTCPServer):
    """A package index."""

    daemon_threads = True


class SlowEngine(socketserver.ThreadingUnixStreamServer):
    """A container engine."""

    daemon_threads = True


def make_project(folder: Path, answer: float) -> dict[str, str]:
    """Write a project with slow hosts; returns the environment for its commands."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"ssh": SSH, "docker": SLOW_PROGRAM, "salloc": SLOW_PROGRAM}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    (folder / "hosts.txt").write_text("node[1-3] slots=1\n")
    (folder / "program.py").write_text("print('hello')\n")
    (folder / "requirements.txt").write_text("idna\n")
    (folder / "folder").mkdir()
    (folder / "folder" / "file").write_bytes(os.urandom(1 << 20))
    (folder / "home").mkdir()
    (folder / ".muster").mkdir(mode=0o700)  # a scan of hosts is paramiko's, and runs no ssh but this one
    (folder / ".muster" / "ssh_config").write_text(
        f"Host node3\n    ProxyCommand sh -c 'sleep {SLOW_SECONDS}; exit 1'\n"
    )
    (folder / ".muster" / "ssh_config").chmod(0o600)
    index, engine = SlowIndex(("127.0.0.1", 0), SlowServer), SlowEngine(str(folder / "engine"), SlowServer)
    for server in (index, engine):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{index.server_address[1]}/simple"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))},
        **{
            "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "MUSTER_SSH": "openssh",
            "MUSTER_DIR": str(folder / "keys"),  # of the practice cluster
        },
        **{"HOSTS_HOME": str(folder / "homes"), "SLOW_LOGIN": str(SLOW_SECONDS), "SLOW_ANSWER": str(answer)},
        **{
            "UV_DEFAULT_INDEX": url,
            "PIP_INDEX_URL": url,
            "DOCKER_HOST": f"unix://{folder / 'engine'}",
            "TERM": "xterm",
        },
    }


def silence(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], *, terminal: bool
) -> tuple[tuple[float, float], float, str]:
    """The longest silence of a command with its begin, its whole time, and its output."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    began = last = time.monotonic()
    with subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        longest, output = (0.0, 0.0), b""
        while True:
            select.select([ours], [], [])
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the end of a terminal
                piece = b""
            now = time.monotonic()
            longest, last, output = max(longest, (now - last, last - began)), now, output + piece
            if not piece:
                break
    os.close(ours)
    return longest, time.monotonic() - began, output.decode(errors="replace")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="*", help="as in the table: env.list")
    parser.add_argument("--answer", type=float, default=0.0, help="seconds that each answer of node3 takes")
    parser.add_argument("--show", action="store_true", help="also print the output on the pipe")
    options = parser.parse_args()
    sys.stdout.write(
        "| command | slow | seconds | silent on a terminal | on a pipe |\n|---|---|---|---|---|\n"
    )
    failed = False
    for name in options.command or CASES:
        case = CASES[name]
        argv = [str(MUSTER), *name.partition(",")[0].split("."), *shlex.split(case.arguments)]
        cells, whole, output = [] if case.terminal else ["-"], 0.0, ""
        for terminal in (True, False) if case.terminal else (False,):
            with tempfile.TemporaryDirectory(prefix="muster-silence-") as folder:
                env = make_project(Path(folder), options.answer)
                (longest, began), whole, output = silence(argv, Path(folder), env, terminal=terminal)
            cells.append(f"{longest:.1f} from {began:.1f}")
            most = min(MOST_PIPE_SECONDS, max(MOST_SECONDS, SHARE * (began + longest)))
            failed = failed or longest > most or whole < SLOW_SECONDS
        sys.stdout.write(f"| {name} | {case.slow} | {whole:.1f} | {' | '.join(cells)} |\n")
        if options.show:
            sys.stdout.write(f"$ {shlex.join(['muster', *argv[1:]])}\n{output}\n")
        sys.stdout.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
