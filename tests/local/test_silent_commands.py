"""No command is silent while it waits: for a host that is held back, or for a slow program."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from muster.deploy.cli.commands import MODULES
from tests.launching import MUSTER, Project
from tests.terminals import shown_on
from tests.waiting import PATIENCE

JOB = "20260101-000000-abcd"
# The commands that wait for no host, or that are held by another test.
OTHERS = {
    "init": "writes three files",
    "demo": "has no host but this machine; a launch shows its stages",
    "completion": "prints a text",
    **dict.fromkeys(("hosts.drain", "hosts.undrain"), "reads files of this machine"),
    "shell": "ssh replaces it",
    **dict.fromkeys(
        ("setup", "verify", "rotate-keys", "teardown", "venv", "wheelhouse"),
        "tests/ansible/test_progress_of_setup.py",
    ),
}
PROGRAMS = {"cluster.up": "", "cluster.down": "", "image.build": "cpu"}
ENGINE = {"image.check": "", "image.push": ""}
# The command lines that wait for a host.
HOSTS = {
    "launch": "--np 3 program.py",
    "status": "--json",
    "logs": JOB,
    "attach": "",
    "stop": JOB,
    "report": JOB,
    "top": "--hosts hosts.txt --once",
    "free": "--json",
    "stacks": "",
    "why": "",
    "eval": f"{JOB} step",
    "forward": f"{JOB} 22",
    "check": "--json",
    "bench.links": "--short",
    "bench.collectives": "all_reduce",
    "bench.hosts": "--short",
    "env.list": "--json",
    "env.remove": "",
    "run": "-- echo hello",
    "put": "program.py",
    "get": "/etc/hostname got",
    "clean": "",
    "data.push": "folder",
    "data.list": "--json",
    "data.verify": "folder",
    "data.remove": "folder",
}
# A host is a process of this machine. Only the login of node3 waits until the gate exists.
SSH = """#!/bin/sh
case " $* " in
    *" -G "*) exec /usr/bin/ssh "$@" ;;
    *" node3 "*) {gate} ;;
esac
eval "last=\\${{$#}}"
exec sh -c "$last"
"""
GATE = "while [ ! -e {gate} ]; do sleep 0.05; done"


@dataclass
class Running:
    """A command whose standard error is a terminal."""

    process: subprocess.Popen[str]
    terminal: int
    shown: str = ""

    def read_until(self, pattern: str) -> str:
        """Read the terminal until it shows a match."""
        while not re.search(pattern, self.shown):
            try:
                piece = os.read(self.terminal, 1 << 16).decode(errors="replace")
            except OSError:
                piece = ""
            assert piece, f"it ended without {pattern!r}: {self.shown}"
            self.shown += piece
        return self.shown

    def end(self) -> str:
        """Read everything until its end; returns its standard output."""
        self.shown += shown_on(self.terminal)
        output, _ = self.process.communicate(timeout=PATIENCE)
        return output


@dataclass
class SlowHosts:
    """A project with three hosts, of which node3 is held back."""

    project: Project
    gate: Path
    started: list[Running] = field(default_factory=list)

    def start(self, command: str, arguments: str, size: tuple[int, int] = (24, 80)) -> Running:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        process = subprocess.Popen(
            [str(MUSTER), *command.split("."), *shlex.split(arguments)],
            cwd=self.project.path,
            env=self.project.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        self.started.append(Running(process, ours))
        return self.started[-1]


@pytest.fixture
def slow(project: Project, tmp_path: Path) -> Iterator[SlowHosts]:
    gate, programs, muster = tmp_path / "gate", tmp_path / "bin", project.path / ".muster"
    held = GATE.format(gate=gate)
    programs.mkdir()
    (programs / "ssh").write_text(SSH.format(gate=held))
    (programs / "docker").write_text(f"#!/bin/sh\n{held}\nexit 1\n")
    for program in programs.iterdir():
        program.chmod(0o700)
    muster.mkdir(mode=0o700)  # paramiko, which scans hosts, runs only this of the configuration
    (muster / "ssh_config").write_text(f"Host node3\n    ProxyCommand sh -c '{held}; exit 1'\n")
    (muster / "ssh_config").chmod(0o600)
    (project.path / "hosts.txt").write_text("node[1-3]\n")
    (project.path / "folder").mkdir()
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    project.env.update(PATH=path, MUSTER_SSH="openssh", TERM="xterm", MUSTER_PROGRESS="")
    hosts = SlowHosts(project, gate)
    yield hosts
    gate.touch()
    for running in hosts.started:
        running.process.kill()
        running.process.communicate()
        os.close(running.terminal)


# One of each family; they wait in the same function.
IN_EVERY_TEST = {
    *("launch", "status", "logs", "why", "check", "bench.links", "env.list", "run", "put", "data.push"),
    *("forward", "stop"),
}


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=() if name in IN_EVERY_TEST else pytest.mark.soak) for name in HOSTS]
)
def test_a_command_names_the_host_that_it_waits_for(command: str, slow: SlowHosts) -> None:
    running = slow.start(command, HOSTS[command])
    running.read_until(r"(waiting for|connecting).*node3")
    if "--json" in HOSTS[command]:
        slow.gate.touch()
        assert isinstance(json.loads(running.end()), dict | list)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("clean", "node2: 0 jobs removed"),
        ("data list", "no data sets"),
        ("data remove folder", ""),
        ("env list", "no environments"),
        ("env remove", "node1: 0 environments removed"),
        ("get /etc/hostname got", "got/hostname@node2"),
    ],
)
def test_a_host_that_is_down_hides_nothing_of_the_others(command: str, shown: str, slow: SlowHosts) -> None:
    (slow.gate.parent / "bin" / "ssh").write_text(SSH.format(gate="echo 'no route to host' >&2; exit 255"))
    done = slow.project.muster(*command.split())
    assert done.returncode == 3 and shown in done.stdout, done.stdout + done.stderr
    assert "node3: no route to host" in done.stderr and "node1:" not in done.stderr


def test_a_launch_names_the_host_whose_slots_it_waits_for(slow: SlowHosts) -> None:
    slow.start("launch", "--slots cores program.py").read_until("waiting for 1 of 3 hosts: node3")


@pytest.mark.parametrize("command", ["launch", "run"])
def test_an_interrupt_during_the_logins_reports_no_job_that_was_ended(command: str, slow: SlowHosts) -> None:
    running = slow.start(command, HOSTS[command])
    running.read_until("node3")
    running.process.terminate()
    running.end()
    assert running.process.returncode == 143
    assert running.shown.endswith("interrupted while connecting to the hosts\r\n")


DRAWS = """#!/bin/sh
test -t 2 || exit 9
printf 'size %s\\n\\033[1A\\033[2Kbuilding\\n' "$(stty size <&2)" >&2
{gate}
printf 'built\\n' >&2
exit 7
"""


@pytest.mark.parametrize("command", PROGRAMS)
def test_a_program_draws_on_the_terminal_itself(command: str, slow: SlowHosts) -> None:
    (slow.gate.parent / "bin" / "docker").write_text(DRAWS.format(gate=GATE.format(gate=slow.gate)))
    slow.project.env["MUSTER_DIR"] = str(slow.project.path / "keys")
    running = slow.start(command, PROGRAMS[command], size=(33, 77))
    running.read_until("building")
    slow.gate.touch()
    running.end()
    assert "size 33 77\r\n\x1b[1A\x1b[2Kbuilding\r\nbuilt\r\n" in running.shown
    assert "failed" in running.shown.rpartition("built")[2]


@pytest.mark.parametrize("command", ENGINE)
def test_a_line_names_a_slow_container_engine(command: str, slow: SlowHosts) -> None:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(address := str(slow.project.path / "engine"))
        engine.listen()  # the answer comes after the line
        slow.project.env["DOCKER_HOST"] = f"unix://{address}"
        slow.start(command, ENGINE[command]).read_until("waiting for the container engine")


def test_every_command_is_held_or_cannot_wait() -> None:
    assert {*HOSTS, *OTHERS, *PROGRAMS, *ENGINE} == {*MODULES}


def test_the_line_leaves_nothing_on_the_terminal_and_nothing_in_the_output(slow: SlowHosts) -> None:
    running = slow.start("run", "-- echo hello")
    running.read_until("waiting for 1 of 3 hosts: node3")
    slow.gate.touch()
    assert running.end() == "node[1-3]: hello\n"
    assert running.shown.endswith("\r\x1b[K")
