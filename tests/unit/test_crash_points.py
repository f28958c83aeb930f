"""The power goes at every moment at which something is synced or renamed: no content is ever wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.wire import durable
from tests.crashes import WORKS, Disk, watched


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("names_first", [True, False], ids=["names first", "names last"])
@pytest.mark.parametrize("name", WORKS)
def test_no_power_cut_leaves_wrong_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, names_first: bool, share: float
) -> None:
    # The disk is simulated: the real one need not be waited for.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(durable, "sync_file_system", lambda folder: None)
    work, folder, crashed = WORKS[name], tmp_path / "live", tmp_path / "crashed"
    folder.mkdir()
    work.prepare(folder)
    disk = Disk(folder)
    points: list[Path] = []

    def crash(call: str, what: Any) -> None:
        if call == "before":  # what comes after a call is the same as what comes before the next
            points.append(crashed / str(len(points)))
            disk.after_crash(points[-1], names_first=names_first, share=share)
        elif call == "fsync":
            disk.sync(Path(f"/proc/self/fd/{what}").readlink())
        elif call == "sync_file_system":
            disk.sync_all()
        disk.forget_unused()

    with watched(crash):
        work.act(folder)
    done = tmp_path / "done"
    disk.after_crash(done, names_first=names_first, share=share)
    assert points
    for point in points:
        work.check(point, False)
    work.check(done, True)
