"""How an agent comes to a host, whatever its login shell does before."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy.core.connect.bootstrap import BOOTSTRAP, agent_source, command
from muster.deploy.core.connect.channel import SWALLOWED, Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.requests import TIME
from muster.deploy.core.connect.transports.process import PIPE_SIZE, LocalPipe


def host(tmp_path: Path, before: str) -> Channel:
    """A host whose login shell does something first."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{before}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o700)
    return Channel("node1", LocalPipe(str(python)), Inbox())


@pytest.mark.parametrize(
    "before",
    [
        "",
        "echo welcome",
        "printf 'no newline'",
        "echo noise >&2; echo '{\"reply\": 0}'",
        "yes | head -c 900000",
    ],
)
def test_what_start_up_files_print_is_passed_over(tmp_path: Path, before: str) -> None:
    channel = host(tmp_path, before)
    try:
        assert channel.ask(TIME, seconds=120).time > 0
    finally:
        channel.close()


@pytest.mark.parametrize(
    ("before", "kind", "text"),
    [
        ("exit 7", "python.failed", "the agent ended with status 7: no message"),
        ("echo not for you; exit 1", "python.failed", "the agent ended with status 1: not for you"),
        ("echo a; echo why >&2; exit 1", "python.failed", "the agent ended with status 1: why"),
        ("head -c 100 >/dev/null", "ssh.shell-reads", SWALLOWED),
        ("yes y", "ssh.shell-noisy", "its agent did not start, and 1 MiB of other output came: y"),
    ],
)
def test_a_shell_that_lets_nothing_run_is_quoted(tmp_path: Path, before: str, kind: str, text: str) -> None:
    channel = host(tmp_path, before)
    try:
        with pytest.raises(LostError) as caught:
            channel.ask(TIME, seconds=120)
    finally:
        channel.close()
    assert (caught.value.kind, caught.value.text) == (kind, text)
    assert "shell" in caught.value.remedy


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("RuntimeError: can't start new thread", "raise nproc"),
        ("sh: fork: Resource temporarily unavailable", "raise nproc"),
        ("OSError: [Errno 24] Too many open files", "raise nofile"),
        ("MemoryError", "no memory is left there"),
    ],
)
def test_a_host_that_lacks_something_is_told_what(tmp_path: Path, words: str, remedy: str) -> None:
    channel = host(tmp_path, f"echo {shlex.quote(words)} >&2; exit 1")
    with pytest.raises(LostError) as caught:
        channel.ask(TIME, seconds=120)
    channel.close()
    assert caught.value.text == f"the agent ended with status 1: {words}"
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh"])
def test_any_shell_passes_it_on_as_it_is(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    line = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1])", BOOTSTRAP])
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == BOOTSTRAP + "\n"
    assert "\n" not in BOOTSTRAP


@pytest.mark.parametrize(
    ("python", "reached"),
    [
        ("~/my env/bin/python", "{home}/my env/bin/python"),
        ("/opt/a ~/b", "/opt/a ~/b"),
        ("~$(id)/python", "~$(id)/python"),
    ],
)
def test_a_home_is_found_in_the_path_of_a_python(tmp_path: Path, python: str, reached: str) -> None:
    line = command(python).partition(" -c ")[0]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", f"printf %s {line}"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == reached.format(home=tmp_path)


def test_the_source_of_an_agent_fits_into_a_pipe() -> None:
    """Else the driver, which writes it first, waits for a host that prints without end."""
    assert len(agent_source()) < PIPE_SIZE
