"""What `muster status`, `logs`, `attach` and `stop` do. Their help needs none of these imports."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core import interrupts
from ..core.connect.requests import JobState
from ..core.errors import UnfitError, UsageError
from ..core.job import find as jobs
from ..core.job.bounded import TooLargeError, content_of
from ..core.job.fetch import fetch
from ..core.job.find import LocatedJob, LogLine
from ..core.job.reconnect import reconnecting
from ..core.text.columns import width_of
from ..core.text.progress import Progress
from ..core.text.screen import Screen
from ..core.text.terminal import harmless, harmless_lines
from ..core.text.text import count, span
from ..core.waits import waiting
from ..core.wire.users import own_name
from ..features.why.messages import late_of, stall_of
from . import job_table
from .command import Exit
from .job_lookup import locate, look, require_logs
from .job_options import ALL, AS_LAUNCHED, Attach, Logs, Status, Stop
from .page_after_job import PAGE, end_with_page
from .run_files import FILES
from .shared import print_note, require_rank, write_json

LOST_STATUS = 3
LOGS = "        logs: "  # of a verdict
MOST_VERDICT = 1 << 20


def _as_json(state: JobState) -> dict[str, Any]:
    """Its fields, with what features record of it."""
    stall, late = stall_of(state.recorded), late_of(state.recorded)
    fields = {**asdict(state), "stall": stall and asdict(stall), "late": [rank.as_json() for rank in late]}
    return {name: value for name, value in fields.items() if name != "recorded"}


def status(options: Status) -> None:
    """List them. A host that cannot be asked is an error with exit status 3."""
    with look(options.job, options) as search:
        candidates = jobs.own(search.jobs, own_name()) if options.mine else search.jobs
        last = 0 if options.running else options.last or None
        shown = [search.named(options.job)] if options.job else jobs.listed(candidates, last)
        states = [entry.state for entry in shown]
        width = width_of(sys.stdout)
        if options.json:
            write_json([_as_json(state) for state in states])
        elif options.job:
            sys.stdout.write(job_table.details(states[0], width))
        else:
            sys.stdout.write(job_table.table(states, width))
            hidden = len(candidates) - len(states)
            if hidden and not options.running:
                print_note(f"{count(hidden, 'older job')}: muster status -n 0 lists all")
        for line in (*(() if options.job else search.doubts), *search.lines):
            print_note(line)
        if search.lines and not search.runs_here:  # a silent host may have the job that is meant
            raise Exit(code=UnfitError.exit_status)


def logs(options: Logs) -> None:
    """Print the lines that are asked for; of a job that is followed also its verdict."""
    with locate(options.job, options, default="newest") as found:
        located = reconnecting(found, print_note)
        pattern = _pattern(options.grep)
        require_logs(located)
        # Before a restart a job may have had more ranks; before Slurm gives hosts it has none.
        if options.rank != ALL and located.state.ranks and not located.state.attempt:
            require_rank(options.rank, located.state.ranks)
        screen = Screen(sys.stdout)
        try:
            rank = None if options.rank < 0 else options.rank
            with waiting(f"output of {located.state.job}"):
                for line in jobs.printed(located, rank=rank, follow=options.follow):
                    _show(screen, line, pattern)
        finally:
            screen.close()
        if options.follow:
            _end(located, options.runs_folder, screen)


def attach(options: Attach) -> None:
    """Show it, then the verdict, and exit with the status of the job."""
    with locate(options.job, options, default="newest running") as found:
        located = reconnecting(found, print_note)
        require_logs(located)
        screen = Screen(sys.stdout)
        name = located.state.job
        if located.state.state == "waiting":
            screen.say(harmless(f"{name} waits: {located.state.why}"))
        try:
            with waiting(f"output of {name}"):
                for line in jobs.printed(located, rank=None, follow=True, skip=True):
                    _show(screen, line)
        except KeyboardInterrupt:
            raise Exit(
                f"\n{name} keeps running on its hosts; see it again with: muster attach {name}", 130
            ) from None
        finally:
            screen.close()
        _end(located, options.runs_folder, screen)


def stop(options: Stop) -> None:
    """End the job."""
    with locate(options.job, options, default="only running") as located:
        if not located.state.running:
            sys.stdout.write(f"{located.state.job} is over: {harmless(job_table.outcome(located.state))}\n")
            return
        with waiting(end := f"the end of {located.state.job} (a second stop kills it)") as wait:
            by = f"by {own_name()} on {socket.gethostname()}"
            grace = None if options.grace == AS_LAUNCHED else float(options.grace)
            for state in jobs.stop(located, by, grace):
                wait.name(f"{span(state.saving)} to handle SIGTERM" if state.saving else end)
        sys.stdout.write(f"{state.job} {harmless(job_table.outcome(state))}\n")
        if state.running:
            raise Exit(f"{state.job} still runs on {state.hosts[0]}; look at its console", 1)


def _pattern(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise UsageError(f"--grep {grep}: {error}") from None


def _show(screen: Screen, line: LogLine, wanted: re.Pattern[str] | None = None) -> None:
    """Print a rank's output as a launch does. The launcher's own output stays in its log."""
    parts = line.text.splitlines(keepends=True)
    text = "".join(part for part in parts if not wanted or wanted.search(part))
    if not text:
        return
    Progress.close_all()  # from now on a silence is the job's
    if line.rank is not None:
        screen.output(line.rank, line.host, line.stream, text)
    elif line.stream == "driver.log":
        screen.say(harmless_lines(text.rstrip("\n")))
    if screen.error:  # the reader is gone, or the disk is full
        raise screen.error


def _end(located: LocatedJob, runs: Path, screen: Screen) -> None:
    """Fetch the folder of a job that is over, print its verdict, and exit with its status."""
    state: JobState = jobs.state_of(located)
    with Progress(f"copying the folder of {state.job}"):
        folder = fetch(located, runs, FILES)
    if state.exit_status is None:
        raise Exit(f"LOST    {harmless(state.why)}\n        logs: {folder}/logs", LOST_STATUS)
    try:
        text = content_of(folder / "verdict.txt", MOST_VERDICT).decode(errors="replace").rstrip("\n")
    except TooLargeError as error:  # no driver writes as much: the host has changed it
        text = f"verdict.txt is left out: {error}"
    interrupts.decide(state.exit_status)
    lines = text.replace(state.driver_folder, str(folder)).split("\n")
    after_logs = (number for number, line in enumerate(lines, 1) if line.startswith(LOGS))
    lines.insert(max(after_logs, default=len(lines)), f"        page: {folder / PAGE}")
    screen.say("\n".join(map(harmless, lines)))
    end_with_page(folder)
    if screen.error:
        raise screen.error
    if state.exit_status:
        raise Exit(code=state.exit_status)
