"""The modules of the driver that declare requests to agents."""

from __future__ import annotations

from muster.deploy.core.connect.bootstrap import DEPLOY


def request_modules() -> list[str]:
    """`muster.deploy.features.why.messages` and the like."""
    paths = sorted(path for path in DEPLOY.rglob("*.py") if "= Request(" in path.read_text())
    names = (".".join(path.relative_to(DEPLOY).with_suffix("").parts) for path in paths)
    return [f"muster.deploy.{name}" for name in names if not name.endswith("__init__")]
