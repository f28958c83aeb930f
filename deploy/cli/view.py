"""`muster report` and `muster compare`: pages of runs."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..console.terminal import harmless
from ..errors import UsageError
from ..jobs.control import LocatedJob
from ..jobs.fetch import fetch, snapshot
from ..view.compare import results
from ..view.compare.differences import differences, unrecorded
from ..view.compare.results import outcome
from ..view.page.records import Records, read
from ..view.page.render import NAME, render, write_page, write_report
from .command import flag
from .job_lookup import locate, require_logs
from .shared import JSON, NewestJobOptions, RecordOptions, write_json


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


@dataclass(frozen=True)
class Compare(RecordOptions):
    """Compare jobs: code, arguments, environment, versions, hosts and results."""

    job: tuple[str, ...] = flag((), "a job: its id, or the end of it; give two or more", takes="positional")
    html: str = flag("", "also write the comparison as a page to this file", "FILE")
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Print the differences."""
        if len(self.job) < 2:
            raise UsageError("which jobs? muster compare JOB1 JOB2; muster status lists all")
        with tempfile.TemporaryDirectory(prefix="muster-compare-") as folder:
            records = [_records(job, self, Path(folder)) for job in self.job]
        changes, comparison = differences(records), outcome(records)
        if self.html:
            page = render(
                "compare.html",
                changes=changes,
                comparison=comparison,
                unrecorded=unrecorded(records),
                compared=results.COMPARED,
            )
            write_page(page, Path(self.html))
        if self.json:
            write_json(results.as_json(records, changes, comparison))
        else:
            sys.stdout.write(results.as_text(records, changes, comparison))


def _records(job: str, options: RecordOptions, copies: Path) -> Records:
    """The records of a job; for a job that runs elsewhere, they are copied to the folder `copies`."""
    with locate(job, options) as located:
        require_logs(located)
        if not located.records.host:
            return read(Path(located.state.folder))
        if not located.state.running:
            return read(fetch(located, options.runs_folder))
        folder = copies / located.state.job
        snapshot(located, folder)
        return read(folder)


@contextlib.contextmanager
def _folder(located: LocatedJob, runs: Path) -> Iterator[tuple[Path, Path]]:
    """The folder with the records of a job, and the path of its page."""
    if not located.records.host or not located.state.running:
        folder = fetch(located, runs) if located.records.host else Path(located.state.folder)
        yield folder, folder / NAME
        return
    with tempfile.TemporaryDirectory(prefix="muster-report-") as copies:
        folder = Path(copies) / located.state.job
        folder.mkdir()
        snapshot(located, folder)
        yield folder, Path(f"report-{located.state.job}.html")
