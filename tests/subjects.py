"""The modules of the driver that declare requests to agents."""

from __future__ import annotations

from pathlib import Path

from muster.deploy.core.connect.bootstrap import DEPLOY


def request_modules() -> list[str]:
    """`muster.deploy.features.why.messages` and the like."""
    places = (
        "core/connect/requests/*.py",
        "core/*/messages.py",
        "features/*/messages.py",
        "features/preload/driver.py",
    )
    paths: set[Path] = set().union(*(DEPLOY.glob(place) for place in places))
    names = (".".join(path.relative_to(DEPLOY).with_suffix("").parts) for path in sorted(paths))
    return [f"muster.deploy.{name}" for name in names if not name.endswith("__init__")]
