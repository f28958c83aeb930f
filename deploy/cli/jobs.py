"""`muster status`, `muster logs`, `muster attach` and `muster stop`: jobs by their id, from any terminal."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import interrupts
from ..common.rank_logs import host_of_spawned
from ..common.users import own_name
from ..connect.requests.jobs import JobState
from ..console.columns import width_of
from ..console.progress import Progress
from ..console.screen import Screen
from ..console.terminal import harmless, harmless_lines
from ..console.text import count
from ..errors import UnfitError, UsageError
from ..jobs import control as jobs
from ..jobs import table as job_table
from ..jobs.bounded import TooLargeError, content_of
from ..jobs.control import LocatedJob, LogLine
from ..jobs.fetch import fetch
from ..jobs.reconnect import reconnecting
from ..waits import waiting
from .command import Exit, flag
from .ending import PAGE, end_with_page
from .job_lookup import locate, look, require_logs
from .shared import (
    HOSTS_ALSO,
    JSON,
    ONLY_JOB,
    JobOptions,
    NewestJobOptions,
    RunningJobOptions,
    print_note,
    require_rank,
    write_json,
)

ALL = AS_LAUNCHED = -1
LAST = 20
"""Jobs that are over in the list of `muster status`."""
LOST_STATUS = 3
LOGS = "        logs: "  # of a verdict
MOST_VERDICT = 1 << 20


@dataclass(frozen=True)
class Status(JobOptions):
    """List the jobs of this machine and of the hosts, or show one job in detail.

    Jobs that run come first, then the last ones that are over, each the newest first.
    """

    hosts: str = flag(
        "", "also list the jobs of these hosts (default: hosts.txt, if there is one)", "FILE", also=HOSTS_ALSO
    )
    mine: bool = flag(False, "only the jobs that you launched")
    running: bool = flag(False, "only the jobs that run")
    last: int = flag(
        LAST, f"the jobs that are over to list (default: {LAST}; 0: all)", "N", also=("-n",), least=0
    )
    json: bool = flag(False, f"{JSON}, with all fields")

    def run(self) -> None:
        """List them. A host that cannot be asked is an error with exit status 3."""
        with look(self.job, self) as search:
            candidates = jobs.own(search.jobs, own_name()) if self.mine else search.jobs
            last = 0 if self.running else self.last or None
            shown = [search.named(self.job)] if self.job else jobs.listed(candidates, last)
            states = [entry.state for entry in shown]
            width = width_of(sys.stdout)
            if self.json:
                write_json([asdict(state) for state in states])
            elif self.job:
                sys.stdout.write(job_table.details(states[0], width))
            else:
                sys.stdout.write(job_table.table(states, width))
                hidden = len(candidates) - len(states)
                if hidden and not self.running:
                    print_note(f"{count(hidden, 'older job')}: muster status -n 0 lists all")
            for line in (*(() if self.job else search.doubts), *search.lines):
                print_note(line)
            if search.lines:  # a silent host may have jobs that are not shown
                raise Exit(code=UnfitError.exit_status)


@dataclass(frozen=True)
class Logs(NewestJobOptions):
    """Print the output of all ranks of a job, in the order of its arrival."""

    follow: bool = flag(
        False, "also show new output until the job ends, then its verdict; exit with its status", also=("-f",)
    )
    rank: int = flag(ALL, "show only this rank", "RANK", least=0)
    grep: str = flag(
        "",
        "show only lines with a match of this regular expression",
        "REGEX",
        blank="a regular expression that matches every line",
    )

    def run(self) -> None:
        with locate(self.job, self, default="newest") as found:
            located = reconnecting(found, print_note)
            pattern = _pattern(self.grep)
            require_logs(located)
            # Before a restart a job may have had more ranks; before Slurm gives hosts it has none.
            if self.rank != ALL and located.state.ranks and not located.state.attempt:
                require_rank(self.rank, located.state.ranks)
            screen = Screen(sys.stdout)
            try:
                rank = None if self.rank < 0 else self.rank
                with waiting(f"output of {located.state.job}"):
                    for line in jobs.printed(located, rank=rank, follow=self.follow):
                        _show(screen, line, pattern)
            finally:
                screen.close()
            if self.follow:
                _end(located, self.runs_folder, screen)


@dataclass(frozen=True)
class Attach(RunningJobOptions):
    """Show the output of a job from now on, until its end and verdict.

    Ctrl-C leaves the job running. At the end, the folder of the run is copied to runs/JOB here.
    """

    def run(self) -> None:
        """Show it, then the verdict, and exit with the status of the job."""
        with locate(self.job, self, default="newest running") as found:
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
            _end(located, self.runs_folder, screen)


@dataclass(frozen=True)
class Stop(JobOptions):
    """End a job on every host. A job that is over stays as it is."""

    job: str = flag("", ONLY_JOB, takes="positional")
    grace: int = flag(
        AS_LAUNCHED,
        "seconds for ranks that handle SIGTERM (default: --grace of the launch)",
        "SECONDS",
        least=0,
    )

    def run(self) -> None:
        with locate(self.job, self, default="only running") as located:
            if not located.state.running:
                sys.stdout.write(
                    f"{located.state.job} is over: {harmless(job_table.outcome(located.state))}\n"
                )
                return
            with waiting(f"the end of {located.state.job}"):
                by = f"by {own_name()} on {socket.gethostname()}"
                state = jobs.stop(located, by, None if self.grace == AS_LAUNCHED else float(self.grace))
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
    text = line.text
    if wanted and wanted.pattern:
        text = "".join(part for part in text.splitlines(keepends=True) if wanted.search(part))
    if not text:
        return
    Progress.close_all()  # from now on a silence is the job's
    if line.rank is not None:
        screen.output(line.rank, line.host, line.stream, text)
    elif host := host_of_spawned(line.stream):
        screen.launcher(host, text, spawned=True)
    elif line.stream == "driver.log":
        screen.say(harmless_lines(text.rstrip("\n")))
    _require_shown(screen)


def _require_shown(screen: Screen) -> None:
    """End the command if its output cannot be written: the reader is gone, or the disk is full."""
    if screen.error:
        raise screen.error


def _end(located: LocatedJob, runs: Path, screen: Screen) -> None:
    """Fetch the folder of a job that is over, print its verdict, and exit with its status."""
    state: JobState = jobs.state_of(located)
    with Progress(f"copying the folder of {state.job}"):
        folder = fetch(located, runs)
    if state.exit_status is None:
        raise Exit(f"LOST    {harmless(state.why)}\n        logs: {folder}/logs", LOST_STATUS)
    try:
        text = content_of(folder / "verdict.txt", MOST_VERDICT).decode(errors="replace").rstrip("\n")
    except TooLargeError as error:  # no driver writes as much: the host has changed it
        text = f"verdict.txt is left out: {error}"
    interrupts.decide(state.exit_status)
    lines = text.replace(state.driver_folder, str(folder)).split("\n")
    position = max(
        (number for number, line in enumerate(lines) if line.startswith(LOGS)), default=len(lines) - 1
    )
    lines.insert(position + 1, f"        page: {folder / PAGE}")
    screen.say("\n".join(map(harmless, lines)))
    end_with_page(folder)
    _require_shown(screen)
    if state.exit_status:
        raise Exit(code=state.exit_status)
