"""`muster report` and `muster compare`: pages of runs."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterable, Iterator
from json import dumps
from pathlib import Path

from ..console.terminal import harmless
from ..errors import UsageError
from ..jobs import control as jobs
from ..jobs.control import Known
from ..jobs.snapshot import snapshot
from ..view.compare import text
from ..view.compare.differences import differences, unrecorded
from ..view.compare.figures import outcome
from ..view.page.records import Records, read
from ..view.page.render import render
from ..view.page.write import NAME, write_page, write_report
from ..view.tensorboard import write_tensorboard
from .command import command
from .job_lookup import one, require_logs
from .jobs import JOB_HELP
from .shared import NEWEST_JOB, explained


@command(
    help={
        **JOB_HELP,
        "job": NEWEST_JOB,
        "output": "the file to write (default: report.html in runs/JOB)",
        "tensorboard": "also write metrics, steps and samples for TensorBoard, to a folder of this folder",
    },
    words=("job",),
)
def report(  # noqa: PLR0917  # a flag for each parameter
    job: str = "",
    output: str = "",
    tensorboard: str = "",
    hosts: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Write the page of a job, one HTML file: its verdict, time line, metrics, resources and last lines.

    A launch and an attach write it at the end. This writes it anew, also for a job that still runs.
    """
    with explained(), one(job, hosts, runs, python, default="newest") as known:
        require_logs(known)
        with _folder(known, Path(runs)) as (folder, page):
            written = write_report(folder, Path(output) if output else page)
            sys.stdout.write(harmless(str(written)) + "\n")
            if tensorboard:
                sys.stdout.write(harmless(write_tensorboard(read(folder), Path(tensorboard))) + "\n")


@command(
    help={
        **JOB_HELP,
        "job": "a job: its id, or the end of it; give two or more",
        "html": "also write the comparison as a page to this file",
        "json": "print JSON for programs",
    },
    iterable=["job"],
    words=("job",),
)
def compare(  # noqa: PLR0917  # a flag for each parameter
    job: Iterable[str] | None = None,
    html: str = "",
    hosts: str = "",
    runs: str = "runs",
    python: str = "",
    json: bool = False,
) -> None:
    """Compare jobs: differences in code, arguments, environment, versions, hosts and results."""
    names = list(job or ())
    with explained(), tempfile.TemporaryDirectory(prefix="muster-compare-") as place:
        if len(names) < 2:
            raise UsageError("which jobs? muster compare JOB1 JOB2; muster status lists all")
        records = [_records(name, hosts, runs, python, Path(place)) for name in names]
        found, came = differences(records), outcome(records)
        if html:
            page = render(
                "compare.html", found=found, came=came, unrecorded=unrecorded(records), compared=text.COMPARED
            )
            write_page(page, Path(html))
        as_json = dumps(text.as_json(records, found, came), indent=2) + "\n"
        sys.stdout.write(as_json if json else text.as_text(records, found, came))


def _records(job: str, hosts: str, runs: str, python: str, place: Path) -> Records:
    """The records of a job, wherever it is."""
    with one(job, hosts, runs, python) as known:
        require_logs(known)
        if not known.place.host:
            return read(Path(known.state.folder))
        if not known.state.running:
            return read(jobs.fetch(known, Path(runs)))
        folder = place / known.state.job
        snapshot(known, folder)
        return read(folder)


@contextlib.contextmanager
def _folder(known: Known, runs: Path) -> Iterator[tuple[Path, Path]]:
    """The folder with the records of a job, wherever it is, and where its page belongs."""
    if not known.place.host or not known.state.running:
        folder = jobs.fetch(known, runs) if known.place.host else Path(known.state.folder)
        yield folder, folder / NAME
        return
    with tempfile.TemporaryDirectory(prefix="muster-report-") as place:
        folder = Path(place) / known.state.job
        folder.mkdir()
        snapshot(known, folder)
        yield folder, Path(f"report-{known.state.job}.html")
