"""The result of a job whose ranks never started, for whoever asks later."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ..errors import MusterError
from ..launch.result import TERMINATED, Failure, Kind, LaunchResult, stopped_by
from ..plan.launch_plan import LaunchPlan
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec, Program
from .run_folder import RunFolder
from .verdict import verdict


def end_unstarted(folder: Path, kind: Kind, reason: str, status: int) -> LaunchResult:
    """Write the result of a job whose ranks never started; returns it, with a plan without hosts."""
    record = json.loads((folder / "job.json").read_text())
    known = {name: record[name] for name in ("job", "launcher", "attempt")}
    nothing = Tree(folder, ".", ())
    plan = LaunchPlan(LaunchSpec(program=Program(), **known), nothing, nothing, (), "")
    failure = Failure(kind, reason, status, at=time.time())
    result = LaunchResult(plan, record["started"], failure.at, failure, {})
    run = RunFolder(folder.parent, folder.name, detached=True)
    run.finish(result, verdict(result, run))
    return result


def why_unstarted(error: BaseException, folder: Path) -> tuple[Kind, str, int]:
    """The kind, reason and exit status of the failure of a job that this error kept from starting."""
    if isinstance(error, MusterError):
        return "driver", str(error), error.exit_status or 1
    try:
        by = json.loads((folder / "stop.json").read_text())["by"]
    except (OSError, ValueError, LookupError):
        return "interrupted", "stopped before it started", TERMINATED
    return "stopped", stopped_by(by), TERMINATED
