"""Flags and functions that many commands share."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.connect.ownership import search_path
from ..core.errors import UsageError
from ..core.plan.flags import flag
from ..core.text.terminal import harmless
from ..core.text.text import fitted
from ..core.wire.users import home
from .command import Command, Declaration
from .project import COMMAND_LINE, Setting, project_of

HOSTS_FILE = "hosts.txt"
"""The name of a hosts file without --hosts."""
RUNS_FOLDER = "runs"
"""The default of --runs."""
THIS_ALLOCATION = "here"
"""The value of `--slurm` without options: the allocation in which this command runs."""

MUSTER = Path(__file__).parents[2]
"""The folder of the package `muster`: a checkout and a wheel have the same files below it."""
TRAIN = MUSTER / "train"

HOSTS = "the hosts file (default: hosts.txt, in this folder or the nearest parent that has one)"
HOSTS_ALSO = ("-H", "--hostfile")
INCLUDE = "only these hosts: node[1-3],gpu-a"
EXCLUDE = "not these hosts"
PYTHON = "the Python on the hosts (default: setup's, else python3; on localhost the Python of Muster)"
JSON = "print JSON for programs"
THE_JOB = "the id of the job, or the end of the id"
NEWEST_JOB = f"{THE_JOB} (default: your newest)"
RUNNING_JOB = f"{THE_JOB} (default: your newest that runs)"
ONLY_JOB = f"{THE_JOB} (default: your only one that runs)"
JOB_HOSTS = "a hosts file with the hosts of a job that was not launched from here (default: hosts.txt)"
RUNS = "the folder that holds the runs of this machine (default: runs)"
NEW_RUN = "the folder in which to make the folder of this run (default: runs)"
LAUNCHER = "mpirun (default) or torchrun"
SLOTS = "slots of every host: gpus, cores, auto (GPUs, else cores) or a number (default: the hosts file's)"


@dataclass(frozen=True)
class HostOptions(Command):
    """The flags of a command for the hosts of a hosts file."""

    hosts: str = flag("", HOSTS, "FILE", also=HOSTS_ALSO)
    include: str = flag("", INCLUDE, "HOSTS")
    exclude: str = flag("", EXCLUDE, "HOSTS")
    python: str = flag("", PYTHON, "PATH", of_project=True)

    @property
    def hosts_file(self) -> Path:
        """`--hosts`, or the hosts file of this folder."""
        return hosts_file_of(self.hosts)


@dataclass(frozen=True)
class RecordOptions(Command):
    """The flags of a command that looks for the records of jobs, here and on hosts."""

    hosts: str = flag("", JOB_HOSTS, "FILE", also=HOSTS_ALSO)
    runs: str = flag(RUNS_FOLDER, RUNS, "FOLDER")
    python: str = flag("", PYTHON, "PATH", of_project=True)

    @property
    def runs_folder(self) -> Path:
        """`--runs`; without it `runs` of this folder, or as git does of the nearest parent that has jobs."""
        if (runs := runs_of(self.runs)) != Path(RUNS_FOLDER):
            return runs
        first, *above = (folder / RUNS_FOLDER for folder in search_path(Path()))
        return first if first.is_dir() else next(filter(_has_own_jobs, above), first)

    @property
    def hosts_file(self) -> Path:
        """`--hosts`, or the hosts file of the folder that holds the runs."""
        is_found = runs_of(self.runs) == Path(RUNS_FOLDER)
        return hosts_file_of(self.hosts, self.runs_folder.parent if is_found else Path())


def hosts_file_of(hosts: str, folder: Path = Path()) -> Path:
    """The value of `--hosts`; without it that of the project's own defaults; else a file hosts.txt.

    This is that of the folder, or of its nearest parent that has one.
    Any user can write a file to a folder such as /tmp, so a file of a parent must belong to this user.
    """
    if hosts:
        return Path(hosts)
    if default := _of_project("--hosts", folder):
        if not Path(default.value).exists():
            raise UsageError(f"{default.place}: hosts = {default.value}: no such file")
        return Path(default.value)
    paths = [place / HOSTS_FILE for place in search_path(folder)]
    if paths[0].parent == folder and os.path.lexists(paths[0]):
        return paths[0]
    return next((path for path in paths if path.is_file() and path.stat().st_uid == os.getuid()), paths[0])


def runs_of(runs: str) -> Path:
    """The value of `--runs`; without it that of the project's own defaults, else `runs`."""
    default = None if runs != RUNS_FOLDER else _of_project("--runs", Path())
    return Path(default.value if default else runs)


def _of_project(name: str, folder: Path) -> Setting | None:
    """The default of a flag in the project's own file, if it has one."""
    project = project_of(folder)
    return project.setting(Declaration(RecordOptions).flags[name]) if project else None


def _has_own_jobs(runs: Path) -> bool:
    """Whether a folder belongs to this user, and has folders with names of jobs."""
    try:
        return runs.stat().st_uid == os.getuid() and any(runs.glob("[0-9]*-[0-9]*-*/"))
    except OSError:
        return False


@dataclass(frozen=True)
class JobOptions(RecordOptions):
    """The flags of a command for one job."""

    job: str = flag("", THE_JOB, takes="positional")


@dataclass(frozen=True)
class NewestJobOptions(JobOptions):
    """The same; without an id, the command is for the newest job of this user."""

    job: str = flag("", NEWEST_JOB, takes="positional")


@dataclass(frozen=True)
class RunningJobOptions(JobOptions):
    """The same; without an id, the command is for the newest job of this user that runs."""

    job: str = flag("", RUNNING_JOB, takes="positional")


@dataclass(frozen=True)
class SlurmOptions(HostOptions):
    """The flags of a command for hosts of a hosts file or of Slurm."""

    slurm: str = flag(
        "",
        "take hosts from Slurm: salloc's options in one argument; without a value, this allocation",
        "OPTIONS",
        alone=THIS_ALLOCATION,
    )


def python_here(options: HostOptions | RecordOptions) -> str:
    """`--python` for this machine. That of a project's file is for a launch only: it may be a stranger's."""
    is_launch = hasattr(options, "profile") and not getattr(options, "dry_run", False)
    of_file = (each.flag == "--python" and each.place != COMMAND_LINE for each in options.sources)
    return options.python if is_launch or not any(of_file) else ""


def print_note(line: str) -> None:
    """Print a line on stderr, because programs may read stdout. It may quote text of a host."""
    sys.stderr.write(f"{fitted(harmless(line), sys.stderr)}\n")


def write_json(value: object) -> None:
    """Print a value for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def cache_folder() -> Path:
    """The folder of this machine for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home(), ".cache"), "muster")


def require_rank(rank: int, count: int, option: str = "--rank") -> int:
    """The rank; `UsageError` if a job with `count` ranks does not have it."""
    if not 0 <= rank < count:
        raise UsageError(f"{option} {rank}: the job has the ranks 0 to {count - 1}")
    return rank
