"""The result of a job whose ranks never started, for whoever asks later."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..common.store import write_atomically
from ..errors import MusterError
from ..launch.result import TERMINATED, stopped_by


def end_unstarted(folder: Path, kind: str, reason: str, status: int) -> dict[str, Any]:
    """Write the result of a job whose ranks never started; returns it."""
    record: dict[str, Any] = json.loads((folder / "job.json").read_text())
    ended = time.time()
    failure: dict[str, Any] = {"kind": kind, "rank": None, "host": None, "reason": reason, "tail": []}
    result: dict[str, Any] = {
        **{name: record[name] for name in ("job", "launcher", "attempt", "started")},
        **{"hosts": [], "ranks": [], "left": {}, "timings": [], "earlier_attempts": [], "why": None},
        **{"first_failure": {**failure, "time": ended}, "ended": ended, "exit_status": status},
    }
    verdict = f"\nFAILED  {reason}\n        logs: {folder}/logs\n"
    (folder / "verdict.txt").write_text(verdict, errors="replace")  # it may quote text of a host
    write_atomically(folder / "result.json", json.dumps(result, indent=2).encode(), 0o600)
    return result


def why_unstarted(error: BaseException, folder: Path) -> tuple[str, str, int]:
    """The kind, reason and exit status of the failure of a job that this error kept from starting."""
    if isinstance(error, MusterError):
        return "driver", str(error), error.exit_status or 1
    try:
        by = json.loads((folder / "stop.json").read_text())["by"]
    except (OSError, ValueError, LookupError):
        return "interrupted", "stopped before it started", TERMINATED
    return "stopped", stopped_by(by), TERMINATED
