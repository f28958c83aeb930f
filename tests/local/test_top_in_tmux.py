"""`muster top` in a real terminal, that of tmux: what it draws, its keys, and how it leaves the terminal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.hosts.host_sample import SAMPLES, HostSample
from muster.deploy.features.samples.driver import SampleFile
from tests.processes import wait_until_gone
from tests.unit.runs import BEGAN, JOB, write_run
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux here")
BIN = Path(sys.executable).parent


class Terminal:
    """A terminal of 80 x 24 with a shell, in a server of tmux of its own."""

    def __init__(self, folder: Path) -> None:
        self._server = ("tmux", "-S", str(folder / "tmux"), "-f", os.devnull)
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        for name in ("COLUMNS", "LINES"):  # of the terminal of pytest: they would hide the size of this one
            environment.pop(name, None)
        words = ("new-session", "-d", "-x", "80", "-y", "24", "sh")
        subprocess.run([*self._server, *words], cwd=folder, env=environment, check=True)

    def type(self, *keys: str) -> None:
        subprocess.run([*self._server, "send-keys", *keys], check=True)

    def shown(self) -> str:
        done = subprocess.run(
            [*self._server, "capture-pane", "-p"], capture_output=True, text=True, check=True
        )
        return done.stdout

    def wait_for(self, *texts: str) -> str:
        """The screen as soon as it has these texts."""
        return wait_until(
            lambda: shown if all(text in (shown := self.shown()) for text in texts) else "",
            lambda: f"{texts} in {self.shown()}",
        )

    def close(self) -> None:
        subprocess.run([*self._server, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    try:
        yield opened
    finally:
        opened.close()


def test_it_draws_hears_keys_and_restores_the_terminal(terminal: Terminal, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", fails=True)
    (folder / SAMPLES).unlink()
    samples = SampleFile(str(folder / SAMPLES), 2)
    for host in ("node1", "node2"):
        samples.add(HostSample(BEGAN, host, cpus=8, cpu=0.81, memory=1 << 30, memory_total=1 << 32))
    samples.close()
    terminal.type("PS1='rea'dy'> '; echo be'fore top'", "Enter")
    terminal.wait_for("before top\nready>")
    terminal.type(f"muster top {JOB}", "Enter")
    first = terminal.wait_for("node2 ", "q quit", "81%", f"{JOB}  failed", "step 2 loss 0.3333")
    assert first.startswith("! failed: rank 3 on node2: exit status 1")
    assert f"\n{JOB}  failed  torchrun, 4 ranks on 2 hosts" in first
    assert first.rstrip().splitlines()[-1].startswith("q quit  Tab ranks")
    terminal.type("Tab")
    terminal.wait_for("last line", "Tab hosts")
    terminal.type("Down", "Enter")
    terminal.wait_for("rank 0 on node1", "step 1 loss 0.5000")
    terminal.type("q")
    terminal.wait_for("before top")
    terminal.type("echo and af'ter'", "Enter")
    assert "node2" not in terminal.wait_for("and after\nready>")


@pytest.mark.parametrize("how", ["SIGTERM", "the terminal is closed"])
def test_it_ends_when_told_and_with_its_terminal(terminal: Terminal, tmp_path: Path, how: str) -> None:
    write_run(tmp_path / "runs", fails=True)
    terminal.type(f"echo $$ >pid; exec muster top {JOB}", "Enter")
    terminal.wait_for("q quit")
    pid = int((tmp_path / "pid").read_text())
    if how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
    else:
        terminal.close()
    wait_until_gone(pid)
