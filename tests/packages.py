"""Small wheels, made in a test: no index is asked for them."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str = "1.0", needs: Sequence[str] = ()) -> Path:
    """A wheel with one module of the package's name, which has its version as VERSION."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-py3-none-any.whl"
    described = f"{module}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", f"VERSION = {version!r}\n")
        wheel.writestr(
            f"{described}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}"
        )
        wheel.writestr(
            f"{described}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        names = [f"{module}.py", *(f"{described}/{part}" for part in ("METADATA", "WHEEL", "RECORD"))]
        wheel.writestr(f"{described}/RECORD", "".join(f"{entry},,\n" for entry in names))
    return path


def require(project: Path, *lines: str) -> Path:
    """A requirements file whose packages come from the folder `wheels` beside it, and from no index."""
    file = project / "requirements.txt"
    file.write_text("\n".join(["--no-index", "--find-links ./wheels", *lines]) + "\n")
    return file
