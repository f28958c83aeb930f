"""Why py-spy cannot read a rank, also where somebody else has waited for it first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.agent.job.stacks import take_stacks


@pytest.fixture
def reaped() -> Iterator[None]:
    """The end of every child is taken before subprocess asks for it, as the agent's Reaper may do."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("reaped")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'Error: Permission denied' >&2; exit 1", "Error: Permission denied"),
        ("exit 1", "py-spy printed nothing"),
    ],
)
def test_the_reason_of_a_py_spy_that_failed_is_told(tmp_path: Path, program: str, reason: str) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\n{program}\n")
    tool.chmod(0o755)
    assert take_stacks(str(tool), {3: (1, "S")}) == {"3": {"error": reason}}
