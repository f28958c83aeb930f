"""The longest time without a byte of output of each command, on slow hosts, a slow engine and a slow index.

    .venv/bin/python benchmarks/silence.py                 # every command, on a terminal and on a pipe
    .venv/bin/python benchmarks/silence.py check env.list  # these commands

A host is a process of this machine behind a `ssh` whose login takes 8 s on node3. `--answer 4` delays all
that node3 sends by so many seconds as well. Programs beside Muster are slow too: docker, its engine, salloc,
and the package index. Every command may end with an error; only its silence is measured.
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

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MOST_SECONDS = 3.0
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
SLOW_PROGRAM = '#!/bin/sh\nsleep 8\necho "$0: no such service here" >&2\nexit 1\n'

HOSTS = "node[1-3] slots=1\n"
JOB = "20260101-000000-abcd"


@dataclass(frozen=True)
class Case:
    """A command line, and what is slow. Without arguments: why the command cannot wait."""

    slow: str
    argv: Sequence[str] = ()


HOST = "a login takes 8 s"
HERE = "reads and writes files of this machine"
CASES: Mapping[str, Case] = {
    "init": Case(HERE),
    "demo": Case("the launch, which has its own live line", ("demo",)),
    "cluster.up": Case("docker compose takes 8 s", ("cluster", "up", "--hosts", "practice/hosts.txt")),
    "cluster.down": Case("docker compose takes 8 s", ("cluster", "down", "--hosts", "practice/hosts.txt")),
    "completion": Case("prints a text"),
    "launch": Case(HOST, ("launch", "--np", "3", "program.py")),
    "status": Case(HOST, ("status",)),
    "logs": Case(HOST, ("logs", JOB)),
    "attach": Case(HOST, ("attach",)),
    "stop": Case(HOST, ("stop", JOB)),
    "report": Case(HOST, ("report", JOB)),
    "compare": Case(HERE),
    "top": Case(HOST, ("top", "--hosts", "hosts.txt", "--once")),
    "stacks": Case(HOST, ("stacks",)),
    "why": Case(HOST, ("why",)),
    "eval": Case(HOST, ("eval", JOB, "step")),
    "debug": Case(HOST, ("debug",)),
    "hosts.scan": Case(HOST, ("hosts", "scan")),
    "hosts.add": Case(HOST, ("hosts", "add", "node3")),
    "check": Case(HOST, ("check",)),
    "setup": Case(HOST, ("setup",)),
    "verify": Case(HOST, ("verify",)),
    "rotate-keys": Case(HOST, ("rotate-keys",)),
    "teardown": Case(HOST, ("teardown",)),
    "bench.links": Case(HOST, ("bench", "links", "--short")),
    "bench.collectives": Case(HOST, ("bench", "collectives", "all_reduce", "-e", "1M")),
    "bench.hosts": Case(HOST, ("bench", "hosts")),
    "env.list": Case(HOST, ("env", "list")),
    "env.remove": Case(HOST, ("env", "remove")),
    "env.diff": Case(HOST, ("env", "diff")),
    "image.build": Case("docker takes 8 s", ("image", "build", "cpu")),
    "image.check": Case("the engine takes 8 s", ("image", "check")),
    "image.sbom": Case("the engine takes 8 s", ("image", "sbom")),
    "image.push": Case("the engine takes 8 s", ("image", "push")),
    "run": Case(f"{HOST}, the program 8 s", ("run", "--", "sleep", "8")),
    "put": Case(HOST, ("put", "program.py")),
    "get": Case(HOST, ("get", "/etc/hostname", "got")),
    "shell": Case("replaced by ssh, which has the terminal"),
    "clean": Case(HOST, ("clean",)),
    "data.push": Case(HOST, ("data", "push", "some-data")),
    "data.list": Case(HOST, ("data", "list")),
    "data.verify": Case(HOST, ("data", "verify", "some-data")),
    "data.pull": Case(HOST, ("data", "pull", "some-data", "pulled")),
    "data.remove": Case(HOST, ("data", "remove", "some-data")),
    # Forms of a command that wait for something else.
    "launch, a slow index": Case(
        "an index answers in 8 s", ("launch", "--requirements", "requirements.txt", "program.py")
    ),
    "check, Slurm": Case("salloc takes 8 s", ("check", "--slurm", "-N 1")),
}


class SlowServer(socketserver.BaseRequestHandler):
    """Answers each request after 8 s, with an error."""

    def handle(self) -> None:
        self.request.recv(1 << 16)
        time.sleep(8)
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
    (folder / "practice").mkdir()
    (folder / "hosts.txt").write_text(HOSTS)
    (folder / "program.py").write_text("print('hello')\n")
    (folder / "requirements.txt").write_text("idna\n")
    (folder / "some-data").mkdir()
    (folder / "some-data" / "file").write_bytes(os.urandom(1 << 20))
    (folder / "home").mkdir()
    (folder / ".muster").mkdir(mode=0o700)  # a scan of hosts is paramiko's, and runs no ssh but this one
    (folder / ".muster" / "ssh_config").write_text("Host node3\n    ProxyCommand sh -c 'sleep 8; exit 1'\n")
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
        },
        **{"HOSTS_HOME": str(folder / "homes"), "SLOW_LOGIN": "8", "SLOW_ANSWER": str(answer)},
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
    worst = 0.0
    for name in options.command or CASES:
        case = CASES[name]
        if not case.argv:
            sys.stdout.write(f"| {name} | no: {case.slow} | | | |\n")
            continue
        measured = []
        for terminal in (True, False):
            with tempfile.TemporaryDirectory(prefix="muster-silence-") as folder:
                env = make_project(Path(folder), options.answer)
                measured.append(silence([str(MUSTER), *case.argv], Path(folder), env, terminal=terminal))
        (on_terminal, seconds, _), (on_pipe, _, output) = measured
        worst = max(worst, on_terminal[0], on_pipe[0])
        silent = " | ".join(f"{length:.1f} from {begin:.1f}" for length, begin in (on_terminal, on_pipe))
        sys.stdout.write(f"| {name} | {case.slow} | {seconds:.1f} | {silent} |\n")
        if options.show:
            sys.stdout.write(f"$ {shlex.join(['muster', *case.argv])}\n{output}\n")
        sys.stdout.flush()
    sys.exit(1 if worst > MOST_SECONDS else 0)


if __name__ == "__main__":
    main()
