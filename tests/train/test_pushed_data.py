"""The data set of a name, as a rank finds it."""

from __future__ import annotations

from pathlib import Path

from muster.train.data.pushed import folder


def test_a_name_is_a_folder_here_first_and_then_a_set(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    environ = {"MUSTER_DATA": str(tmp_path)}
    assert folder("digits", environ) == tmp_path / "digits"
    assert folder(str(tmp_path), environ) == tmp_path
    assert folder("digits", {}) == Path("digits")
