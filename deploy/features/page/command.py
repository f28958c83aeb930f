"""`muster report`: the page of a run."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...cli.job_lookup import locate, require_logs
from ...cli.page_after_job import PAGE
from ...cli.run_files import FILES
from ...cli.shared import NewestJobOptions
from ...core.job.fetch import fetch, snapshot
from ...core.job.find import LocatedJob
from ...core.plan.flags import flag
from ...core.text.terminal import harmless
from .render import write_report


@dataclass(frozen=True)
class Report(NewestJobOptions):
    """Write the page of a job: verdict, time line, metrics, resources, last lines.

    It is one HTML file. launch and attach write it at the end of a job; this command also writes it for a job
    that runs.
    """

    output: str = flag("", "the file to write (default: report.html in runs/JOB)", "FILE")

    def run(self) -> None:
        with locate(self.job, self, default="newest") as located:
            require_logs(located)
            with _folder(located, self.runs_folder) as (folder, page):
                written = write_report(folder, Path(self.output) if self.output else page)
                sys.stdout.write(harmless(str(written)) + "\n")


@contextlib.contextmanager
def _folder(located: LocatedJob, runs: Path) -> Iterator[tuple[Path, Path]]:
    """The folder with the records of a job, and the path of its page."""
    if not located.records.host or not located.state.running:
        folder = fetch(located, runs, FILES) if located.records.host else Path(located.state.folder)
        yield folder, folder / PAGE
        return
    with tempfile.TemporaryDirectory(prefix="muster-report-") as copies:
        folder = Path(copies) / located.state.job
        folder.mkdir()
        snapshot(located, folder, FILES)
        yield folder, Path(f"report-{located.state.job}.html")
