"""A Python whose standard library a test can take away while it runs, as an upgrade does."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


class ReplacedPython:
    """Runs as the tests' Python does; its standard library is a link that `replace` removes."""

    def __init__(self, folder: Path) -> None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.executable = folder / "bin" / "python3"
        (folder / "bin").mkdir(parents=True)
        (folder / "home" / "bin").mkdir(parents=True)
        (folder / "home" / "lib").mkdir()
        self.executable.symlink_to(os.path.realpath(sys.executable))
        (folder / "pyvenv.cfg").write_text(f"home = {folder / 'home' / 'bin'}\n")
        self.library = folder / "home" / "lib" / version
        self.library.symlink_to(sysconfig.get_path("stdlib"))

    def replace(self) -> None:
        """From now on nothing of the standard library can be loaded."""
        self.library.unlink()
