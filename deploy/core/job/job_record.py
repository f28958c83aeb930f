"""The record of a job that has no result yet, job.json; and who has called `muster stop`, by stop.json."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..plan.launch_plan import LaunchPlan
from ..plan.spec import LaunchSpec
from ..wire.files import read_regular
from ..wire.job_folders import identity


def caller_of_stop(folder: Path) -> str:
    """Who has called `muster stop` for the job of this folder; empty without a call, or if it is unknown."""
    try:
        return str(json.loads(read_regular(folder / "stop.json"))["by"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def grace_of_stop(folder: Path) -> float | None:
    """The grace that the caller of `muster stop` has given, if any."""
    try:
        return float(json.loads((folder / "stop.json").read_text())["grace"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def record_of(
    spec: LaunchSpec,
    folder: Path,
    *,
    detached: bool,
    head: str = "",
    plan: LaunchPlan | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """The content of job.json for an attempt; without a plan, for a job whose hosts are not known yet."""
    plan = plan or LaunchPlan(spec, (), "")
    return {
        "job": spec.job,
        "user": spec.user,
        "launcher": spec.launcher,
        "hosts": [host.host.name for host in plan.hosts],
        "ranks": len(plan.ranks) or spec.np,
        "placed": [len(host.ranks) for host in plan.hosts],
        "spares": list(plan.spares),
        "gpus": plan.gpus,
        "attempt": spec.attempt,
        "grace": spec.grace,
        "started": started or time.time(),
        "detached": detached,
        "driver": identity(),
        "driver_folder": str(folder),
        "head": head or (plan.hosts[0].host.name if plan.hosts else ""),
    }
