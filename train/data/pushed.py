"""Where a data set is that `muster data push` brought."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def folder(path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder `path`, or if there is none, the data set of that name."""
    pushed = Path(environ.get("MUSTER_DATA", ""), path)
    return pushed if "MUSTER_DATA" in environ and not Path(path).exists() and pushed.exists() else Path(path)
