"""Standard streams that are closed, or a terminal that goes away: the work is done all the same."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest

from muster.deploy.core.text.terminal import HarmlessStream
from tests.launching import MUSTER


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work(tmp_path: Path, closed: str) -> None:
    (tmp_path / "hosts.txt").write_text("localhost\n")
    ran = subprocess.run(
        ["sh", "-c", f'"{MUSTER}" run -- touch "{tmp_path}/done" {closed}'],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, (tmp_path / "done").exists()) == (0, True), ran.stderr
    assert "Traceback" not in ran.stderr


class Gone(io.StringIO):
    """A terminal that is gone."""

    def write(self, text: str, /) -> int:
        raise OSError(5, "Input/output error")


def test_messages_to_a_terminal_that_is_gone_are_no_error_but_output_is() -> None:
    assert HarmlessStream(Gone(), may_fail=True).write("note") == 4
    with pytest.raises(OSError, match="Input/output"):
        HarmlessStream(Gone()).write("data")
