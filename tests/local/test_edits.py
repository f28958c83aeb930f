"""What a change of one file costs the next launch: benchmarks/edits.py, and its figures of bytes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.launching import ROOT, Project

FILE_BYTES = 4096


@pytest.mark.soak
def test_after_a_change_of_one_file_that_file_alone_is_sent(project: Project) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "edits.py"), "--rounds", "1", "--files", "50"],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent = {name: int(number) for name, number in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", done.stdout, re.M)}
    # Hexadecimal digits compress to about half.
    assert sent["first launch"] - sent["unchanged"] > 50 * FILE_BYTES / 2
    for change in ("one file changed", "one file new"):
        assert FILE_BYTES / 2 < sent[change] - sent["unchanged"] < 2 * FILE_BYTES
