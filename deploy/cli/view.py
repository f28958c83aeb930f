"""`muster report`: the page of a run."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from invoke import Context

from ..console.terminal import harmless
from ..jobs import control as jobs
from ..jobs.control import Known
from ..jobs.snapshot import snapshot
from ..view.page.write import write_report
from .command import command
from .jobs import JOB_HELP, one, require_logs
from .shared import explained


@command(help={**JOB_HELP, "output": "the file to write (default: report.html in runs/JOB)"}, words=("job",))
def report(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    job: str = "",
    output: str = "",
    hosts: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Write the page of a job, one HTML file: its verdict, time line, metrics, resources and last lines.

    A launch and an attach write it at the end. This writes it anew, also for a job that still runs.
    """
    with explained(context), one(job, hosts, runs, python) as known:
        require_logs(known)
        written = _write(known, Path(runs), Path(output) if output else None)
        sys.stdout.write(harmless(str(written)) + "\n")


def _write(known: Known, runs: Path, output: Path | None) -> Path:
    if not known.place.host:
        return write_report(Path(known.state.folder), output)
    if not known.state.running:
        return write_report(jobs.fetch(known, runs), output)
    with tempfile.TemporaryDirectory(prefix="muster-report-") as place:
        folder = Path(place) / known.state.job
        folder.mkdir()
        snapshot(known, folder)
        return write_report(folder, output or Path(f"report-{known.state.job}.html"))
