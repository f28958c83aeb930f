"""Slurm's own programs, on a login node or a node of a job. Calls have a time-out; errors quote them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from ..check.slurm_site import SlurmSite, parse_config, parse_groups
from ..errors import MusterError, UsageError

SECONDS, ENDING_SECONDS = 15.0, 8.0
"""Time-outs of an answer of slurmctld, and of the end of a job."""
ALIVE = frozenset({"", "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED"})
_ENDS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL"}
"""The end of a job that completes, by Slurm's reason."""
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")


def missing(program: str) -> UsageError:
    """The error for a machine without Slurm."""
    return UsageError(
        f"--slurm: no {program} on this machine; start the launch on a login node of the Slurm site"
    )


def ask(*argv: str) -> str:
    """The output of one of Slurm's programs. `MusterError` quotes its own error."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise missing(argv[0]) from None
    except subprocess.TimeoutExpired:
        raise MusterError(
            f"{argv[0]}: no answer within {SECONDS:.0f} s; is slurmctld running? try scontrol ping"
        ) from None
    if done.returncode:
        raise MusterError(f"{argv[0]}: {error_of(done.stderr.splitlines()) or f'status {done.returncode}'}")
    return done.stdout


def error_of(lines: Sequence[str]) -> str:
    """The first error among lines that a program of Slurm printed, without its prefix; else the last line."""
    printed = [line.strip() for line in lines if line.strip()]
    errors = [line for line in printed if re.match(r"\w+: (?:error|fatal): ", line)]
    return re.sub(r"^\w+: (?:(?:error|fatal): )?", "", (errors or printed[-1:] or [""])[0])


def host_names(nodelist: str) -> list[str]:
    """The names of a node list such as `node[1-3]`, in Slurm's order."""
    names = ask("scontrol", "show", "hostnames", nodelist).split()
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise MusterError(f"scontrol show hostnames {nodelist}: {wrong[0]!r} is not a host name")
    return names


def queued(job: str) -> str:
    """Slurm's state of a job that waits: `PENDING (Resources), expected at 2026-11-22T10:00:00`."""
    return _described(ask("squeue", "--noheader", "--jobs", job, "--format", "%T|%r|%S").strip())


def own_jobs() -> dict[str, str]:
    """The user's jobs that are not over, by Slurm's number: `PENDING (Resources)`, `RUNNING (None)`."""
    lines = ask("squeue", "--me", "--noheader", "--format", "%i %T|%r|%S").splitlines()
    return {job: _described(rest) for job, _, rest in (line.partition(" ") for line in lines)}


def _described(line: str) -> str:
    state, _, rest = line.partition("|")
    reason, _, start = rest.partition("|")
    expected = f", expected at {start}" if start and start != "N/A" and state == "PENDING" else ""
    return f"{state} ({reason}){expected}" if state else ""


def ended(job: str) -> str:
    """Why Slurm ended a job: `CANCELLED`, `TIMEOUT (TimeLimit)`; empty while it runs or if unknown.

    A job whose hosts Slurm takes for another gets SIGTERM, and still runs for the partition's GraceTime.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        shown = _shown(job)
        state = shown.get("JobState", "")
        if state in ALIVE:
            return "PREEMPTED" if _preempted(shown) else ""
        if state != "COMPLETING" or time.monotonic() > deadline:
            return _end(shown)
        time.sleep(0.2)  # Slurm shows the final state when the hosts are free


def ending(job: str) -> str:
    """Why Slurm ends the job of this process; empty if it does not.

    Until the last process has ended, Slurm shows only that the job completes, with a reason.
    """
    shown = _shown(job)
    return "" if shown.get("JobState", "") in ALIVE else _end(shown)


def _end(shown: Mapping[str, str]) -> str:
    """The final state of a job; while it completes, the state that follows from its reason."""
    state = shown.get("JobState", "")
    if state == "COMPLETING":
        state = _ENDS.get(shown.get("Reason", ""), "PREEMPTED" if _preempted(shown) else "CANCELLED")
    return _with_reason(state, shown)


def outcome(job: str) -> str:
    """The end of a job of Slurm, from slurmctld, or later from the accounting; empty if neither has it."""
    shown = _shown(job)
    if state := shown.get("JobState", ""):
        return _with_reason(state, shown)
    try:
        return ask(
            "sacct", "--allocations", "--noheader", "--parsable2", "--format=State", "--jobs", job
        ).strip()
    except MusterError:
        return ""


def _shown(job: str) -> dict[str, str]:
    """The fields of `scontrol show job`; none if Slurm does not have the job, or does not answer."""
    try:
        return dict(re.findall(r"(\w+)=(\S*)", ask("scontrol", "show", "job", "--oneliner", job)))
    except MusterError:
        return {}


def _preempted(shown: Mapping[str, str]) -> bool:
    """Whether Slurm took the hosts of this start of the job for another job; times are in ISO 8601."""
    taken = shown.get("PreemptTime", "")
    return taken[:1].isdecimal() and taken >= shown.get("StartTime", "")


def _with_reason(state: str, shown: Mapping[str, str]) -> str:
    reason = shown.get("Reason", "None")
    return state if reason in {"None", ""} else f"{state} ({reason})"


def why_lost(job: str, host: str, *, look: Callable[[str], str] = ended) -> str:
    """Slurm's reason for the end of an agent: the end of the job, or a failed node; else empty.

    `look`: `ending` for a driver inside of the job, which has little time because Slurm ends it too.
    """
    if state := look(job):
        return f"Slurm ended the allocation {job}: {state}"
    state = node_state(host)
    gone = any(part in state for part in ("DOWN", "FAIL", "NOT_RESPONDING", "*"))
    return f"Slurm's state of the node: {state}" if gone else ""


def node_state(name: str) -> str:
    """Slurm's state of a node: `DOWN`, `IDLE+DRAIN`, with its reason; empty if unknown."""
    try:
        shown = ask("scontrol", "show", "node", "--oneliner", name)
    except MusterError:
        return ""
    fields = dict(re.findall(r"(?:^|\s)(State|Reason)=(.*?)(?=\s+\w+=|\s*$)", shown))
    state, reason = fields.get("State", ""), fields.get("Reason", "")
    return f"{state} ({reason})" if reason else state


def site(partition: str = "") -> SlurmSite:
    """The site of this login node; `error` if Slurm does not answer. `mpi` is empty if srun fails."""
    try:
        config = parse_config(ask("scontrol", "show", "config"))
        groups = parse_groups(ask("sinfo", "--noheader", "--format=%R|%a|%D|%T|%E"))
    except MusterError as error:
        return SlurmSite(error=error.reason)
    mpi: list[str] = []
    with contextlib.suppress(MusterError):
        mpi = mpi_plugins()
    return SlurmSite(config=config, mpi=mpi, groups=groups, partition=partition)


def mpi_plugins() -> list[str]:
    """The MPI plugins of srun: `none`, `pmix`, `pmi2`."""
    return re.findall(r"^\s+(\w+)$", ask("srun", "--mpi=list"), re.MULTILINE)


def require_pmix() -> None:
    """`UsageError` where srun cannot start ranks of Open MPI 5."""
    plugins = mpi_plugins()
    if plugins and not any(name.startswith("pmix") for name in plugins):
        raise UsageError(
            f"--launcher srun: srun has no PMIx here, only {', '.join(plugins)}; "
            "use --launcher mpirun, which brings its own"
        )
