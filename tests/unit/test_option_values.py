"""Every option of every command with values that are easy to give by mistake: refused, or meaningful."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.commands import commands
from muster.deploy.cli.dispatch import main
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.errors import MusterError, UsageError
from tests.command_lines import parse
from tests.unit.test_job_states import RECORD, make_run

COMMANDS = commands()
BLANK = ("", " ")
HUGE = "9" * 30
ODD = ("0", "-1", "word", HUGE)
NAMES = ("0", "word", HUGE)
BLANK_MEANS_SOMETHING = {
    "launch --args": "no arguments",
    **dict.fromkeys(
        (
            *("setup --ansible", "verify --ansible", "rotate-keys --ansible", "teardown --ansible"),
            *("venv --ansible", "wheelhouse --ansible"),
        ),
        "no more options",
    ),
    "logs --grep": "a regular expression that matches every line",
}
FREE = {
    "python": "a command or a path of the hosts, where each host looks for it",
    "runs": "any folder may hold runs",
    "output": "the same",
    "to": "the same",
    "html": "the same",
    "file": "the hosts know their files (get); put is among the others",
    "folder": "a folder of the hosts (bench hosts), or one to make (wheelhouse); init is among the others",
    "keep": "a folder with any name can be made",
    "job": "the end of an id",
    "args": "the program knows its arguments",
    "ansible": "ansible-playbook knows its options",
    "command": "the hosts know their programs",
    "expression": "the ranks evaluate it",
    "grep": "a regular expression",
    "why": "any reason",
}
"""Options whose values only a host, a program or the file system can judge, and why."""
JUDGED_ALL_THE_SAME = ("put --file", "init --folder")
MEANINGFUL: Sequence[tuple[str, Sequence[str], str]] = (
    ("launch --max-restarts, launch --stall-timeout, launch --max-log", "0", "the help says so"),
    ("launch --grace, stop --grace", "0", "no time to save"),
    ("launch --gpus", "0", "the help says so"),
    ("launch --wait", "0", "no seconds"),
    ("launch --rank, logs --rank, eval --rank", "0", "the first"),
    ("forward --rank", "0", "the first"),
    ("forward --port", "0", "any free port"),
    ("bench.collectives --warmup-iters", "0", "no calls before the timed ones"),
    ("clean --older-than, status --last", "0", "every job that is over"),
    ("launch --slurm, check --slurm, bench.links --slurm", ["-1"], "salloc knows its options"),
    ("bench.collectives --slurm, bench.hosts --slurm", ["-1"], "salloc knows its options"),
    ("setup --remove", NAMES, "a host that is no longer in the hosts file"),
    ("cluster.up --hosts", ODD, "the file is made"),
    ("cluster.down --hosts", ODD, "its folder has the keys; the file may be gone"),
    ("launch --module", NAMES, "only a rank may have it"),
    ("launch --torch-backend", ["word"], "uv knows its names"),
    ("launch --network, bench.links --network", ["0", "-1", "word"], "an interface of the first host"),
    ("bench.collectives --network, bench.hosts --network", ["0", "-1", "word"], "the same"),
    ("launch --image, image.check --image, image.push --image", NAMES, "an image"),
    ("data.push --name, data.verify --name, data.remove --name", NAMES, "a data set"),
    ("status --hosts, logs --hosts, attach --hosts, stop --hosts", ODD, "the record of the job is here"),
    ("stacks --include, stacks --exclude", ODD, "the record of the job has its hosts"),
    ("report --hosts, top --hosts", ODD, "the record of the job is here"),
)
"""Other options, values that they take, and what these mean. Every other value is refused."""
MEANT = {option: values for options, values, _ in MEANINGFUL for option in options.split(", ")}
JOB = RECORD["job"]
ARGUMENTS = {
    **dict.fromkeys(("status", "logs", "stop", "attach", "report"), JOB),
    "launch": "a.py",
    "top": f"--once {JOB}",
    "eval": f"{JOB} x",
    "forward": f"{JOB} 22",
    "run": "-- true",
    "put": "a.py",
    "get": "a.py",
    "shell": "node1",
    "wheelhouse": "wheels",
    "hosts.drain": "node1 --why x",
    "hosts.undrain": "node1",
    "data.push": "data",
    **dict.fromkeys(("data.verify", "data.remove"), "x"),
}
"""What a command needs besides its options."""
BESIDE = {
    **dict.fromkeys(("launch --mount", "launch --engine"), "--image img:1"),
    **dict.fromkeys(("launch --python-version", "launch --torch-backend"), "--requirements a.py"),
    "launch --min-hosts": "--max-restarts 1",
    "data.push --name": "--source data",
    "hosts.drain --name": "--why x",
}
"""What an option needs besides itself."""


class ReachedError(MusterError):
    """Something outside of this process was reached for."""

    exit_status = 99


def _options() -> list[str]:
    return [
        f"{name} {flag}"
        for name, command in COMMANDS.items()
        for flag, declared in command.flags.items()
        if declared.kind is not bool
    ]


def _line(option: str, value: str) -> list[str]:
    """The words of a command with a value for an option, and with whatever else it needs."""
    name, flag = option.split()
    alone = COMMANDS[name].flags[flag].takes == "positional" or option == "launch --module"
    needed = "" if alone else ARGUMENTS.get(name, "")
    if option in BESIDE:
        needed = BESIDE[option] if name == "data.push" else f"{BESIDE[option]} {needed}"
    return [name, f"{flag}={value}", *shlex.split(needed)]


def _mistake(words: Sequence[str]) -> str:
    """The message that refuses a command line; empty if it is accepted."""
    try:
        parse(words)
    except UsageError as error:
        return str(error)
    return ""


def test_an_empty_value_is_a_mistake_unless_the_option_gives_it_a_meaning() -> None:
    taken = {}
    for option in _options():
        name, flag = option.split()
        for value in BLANK:
            if option in BLANK_MEANS_SOMETHING:
                assert parse(_line(option, value)).values[flag] == value
            elif not (said := _mistake([name, f"{flag}={value}"])) or flag not in said or "\n" in said:
                taken[option] = said
    assert taken == {}


def test_an_empty_word_names_what_is_missing() -> None:
    for line, named in {
        "launch ''": "SCRIPT",
        "launch -m ''": "--module",
        "launch --slurm '' a.py": "--slurm",
        "status ''": "JOB",
        "env remove ''": "ENVIRONMENT",
        "init ''": "FOLDER",
    }.items():
        with pytest.raises(UsageError, match=f"^muster [a-z ]+: {named} is empty; give it a value"):
            parse(shlex.split(line))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose commands reach no host, no other program, and no network."""

    def reached(*words: Any, **more: Any) -> None:
        raise ReachedError("reached")

    for owner, name in (
        (Cluster, "connect"),
        (Cluster, "__enter__"),
        (os, "execve"),
        (os, "execvp"),
        (socket.socket, "connect"),
        (socket, "getaddrinfo"),
        (subprocess.Popen, "__init__"),
    ):
        monkeypatch.setattr(owner, name, reached)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda self: None)
    (tmp_path / "a.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("x")
    (tmp_path / "hosts.txt").write_text("node1 slots=3\nnode2 slots=3\n")
    make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


JUDGED = [
    option for option in _options() if option.split("--")[1] not in FREE or option in JUDGED_ALL_THE_SAME
]


def test_a_senseless_value_is_refused_first(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = []
    for option in JUDGED:
        for value in (value for value in ODD if value not in MEANT.get(option, ())):
            with pytest.raises(SystemExit) as end:
                main(_line(option, value))
            said = capsys.readouterr().err
            is_named = option.split()[1] in said or value in said
            if end.value.code != UsageError.exit_status or len(said.splitlines()) > 2 or not is_named:
                taken.append((option, value, said))
    assert taken == []


def test_the_tables_here_name_options_that_there_are() -> None:
    known, flags = {*_options()}, {option.split("--")[1] for option in _options()}
    assert {*BLANK_MEANS_SOMETHING, *JUDGED_ALL_THE_SAME, *MEANT, *BESIDE} <= known
    assert {*FREE} <= flags
