"""`muster status`, `muster logs`, `muster attach` and `muster stop`: jobs by their id, from any terminal."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.plan.flags import flag
from .shared import HOSTS_ALSO, JSON, ONLY_JOB, JobOptions, NewestJobOptions, RunningJobOptions

ALL = AS_LAUNCHED = -1
LAST = 20
"""Jobs that are over in the list of `muster status`."""


@dataclass(frozen=True)
class Status(JobOptions):
    """List the jobs of this machine and of the hosts, or show one job in detail.

    Jobs that run come first, then the last ones that are over, each the newest first.
    """

    done_by = "job_commands"
    hosts: str = flag(
        "", "also list the jobs of these hosts (default: hosts.txt, if there is one)", "FILE", also=HOSTS_ALSO
    )
    mine: bool = flag(False, "only the jobs that you launched")
    running: bool = flag(False, "only the jobs that run")
    last: int = flag(
        LAST, f"the jobs that are over to list (default: {LAST}; 0: all)", "N", also=("-n",), least=0
    )
    json: bool = flag(False, f"{JSON}, with all fields")


@dataclass(frozen=True)
class Logs(NewestJobOptions):
    """Print the output of all ranks of a job, in the order of its arrival."""

    done_by = "job_commands"
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


@dataclass(frozen=True)
class Attach(RunningJobOptions):
    """Show the output of a job from now on, until its end and verdict.

    Ctrl-C leaves the job running. At the end, the folder of the run is copied to runs/JOB here.
    """

    done_by = "job_commands"


@dataclass(frozen=True)
class Stop(JobOptions):
    """End a job on every host. A job that is over stays as it is."""

    done_by = "job_commands"
    job: str = flag("", ONLY_JOB, takes="positional")
    grace: int = flag(
        AS_LAUNCHED,
        "seconds for ranks that handle SIGTERM (default: --grace of the launch)",
        "SECONDS",
        least=0,
    )
