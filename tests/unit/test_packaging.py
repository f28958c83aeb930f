"""What pyproject.toml says of the packages is what the folders are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.wheel import tracked

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()  # tomllib is of Python 3.11


def test_the_list_of_packages_is_that_of_the_folders() -> None:
    block = PYPROJECT.partition("\npackages = [")[2].partition("]")[0]
    listed = re.findall(r'"(muster[\w.]*)"', block)
    code = {Path(name).parent for name in tracked("deploy", "train") if name.endswith(".py")}
    folders = {".".join(("muster", *folder.parts)) for folder in code}
    assert sorted(listed) == sorted({"muster", "muster.ansible", "muster.docker", *folders})
