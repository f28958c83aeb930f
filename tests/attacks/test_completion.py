"""The Tab key runs nothing that the names in a project's folder contain."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from muster.deploy.cli.completion import script_for
from muster.deploy.cli.dispatch import COMPLETE, Commands

JOB = "20261120-234529-b2d8"
COMMANDS = ("$(touch${IFS}OWNED)", "`touch OWNED`", f"{JOB}(e:'touch OWNED':)", f"{JOB};touch OWNED")
CLEAR = "\x15"  # Ctrl-U
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-o", "globsubst", "-o", "extendedglob", "-i"],  # what expands the most there
    "fish": ["fish", "--no-config", "-i"],
}


@pytest.fixture
def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose names are commands: of runs, files, hosts and profiles."""
    for name in (JOB, *COMMANDS):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name in COMMANDS:
        (tmp_path / name).touch()
    (tmp_path / "hosts.txt").write_text("".join(f"{name}\n" for name in COMMANDS))
    (tmp_path / "muster.toml").write_text("".join(f"[profiles.'''{name}''']\n" for name in COMMANDS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_ids_of_jobs_are_candidates(cloned: Path) -> None:
    found = ShellComplete(Commands(), {}, "muster", COMPLETE).get_completions(["why"], "")
    assert [item.value for item in found] == [JOB]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_runs_nothing(cloned: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    (cloned / "completion").write_text(script_for(shell))
    (cloned / "muster").write_text("#!/bin/sh\ntouch OWNED\n")
    (cloned / "muster").chmod(0o755)
    terminal = Terminal(SHELLS[shell], cloned)
    try:
        terminal.type("source ./completion; echo re''ady\n", shows="ready")
        terminal.type("muster why 2\t", shows=JOB[1:])
        if shell == "bash":  # it completes a command by the last part of its path
            terminal.type(f"{CLEAR}./muster why 2\t", shows=JOB[1:])
        terminal.type(f"{CLEAR}muster check --hosts ho\t", shows="hosts.txt")
        terminal.type(f"{CLEAR}muster launch \\$\t", shows="IFS")
    finally:
        terminal.close()
    assert not (cloned / "OWNED").exists()


class Terminal:
    """A shell in a terminal, in a folder."""

    def __init__(self, argv: list[str], folder: Path) -> None:
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            os.execvpe(  # noqa: S606  # the shell under test
                argv[0], argv, {**os.environ, "HOME": str(folder), "PATH": path, "TERM": "xterm"}
            )

    def type(self, keys: str, *, shows: str) -> None:
        """Type keys, and wait until the terminal shows a text."""
        os.write(self._terminal, keys.encode())
        shown, deadline = "", time.monotonic() + 60
        while shows not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([self._terminal], [], [], 1)[0]:
                shown += os.read(self._terminal, 1 << 16).decode(errors="replace")

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._terminal)
