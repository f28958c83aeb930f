"""Slurm's own programs, on a login node or a node of a job. Calls have a time-out; errors quote them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from ...core.errors import MusterError, UsageError

SECONDS = 15.0  # for an answer of slurmctld
_MESSAGE = re.compile(
    r"\w+: (?P<error>(?:error|fatal): )?"
    r"(?:(?:Job submit/allocate|Batch job submission) failed: )?(?P<text>.+)"
)
_NO_CONFIG = re.compile(r"configuration source|cannot stat file|configuration file|slurm\.conf")
_GENERAL = "Unspecified error"
_ROUTINE = re.compile(
    r"Pending job|Granted job|Relinquishing job|job \d+ (?:queued|has been allocated)|Submitted batch"
    r"|Waiting for resource|Nodes \S+ are ready|debug|verbose|defined options|-+ "
)
"""Messages of each allocation, and those of --verbose."""
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
SLURM_SITES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})
"""Where Slurm's programs find their site, and how they log in to it."""
# Variables that Slurm's programs read as options, from a user's shell or an outer job: srun(1), salloc(1),
# sbatch(1), squeue(1), scancel(1), INPUT ENVIRONMENT VARIABLES. Those of salloc and sbatch remain, because
# users choose a partition or account by them, except those that change how their job runs.
_OPTIONS_OF_SLURM = (
    *("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_", "PMI_"),
    *("SALLOC_KILL_CMD", "SALLOC_DEBUG", "SBATCH_DEBUG", "SBATCH_ARRAY_INX", "SBATCH_CONTAINER"),
    *("SBATCH_ERROR", "SBATCH_EXPORT", "SBATCH_GET_USER_ENV", "SBATCH_INPUT"),
    *("SBATCH_NO_KILL", "SBATCH_WAIT"),
)
KILL_WAIT = 30.0  # Slurm's default


def for_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for one of Slurm's programs: only its arguments are options."""
    return {
        name: value
        for name, value in environ.items()
        if name in SLURM_SITES or not name.startswith(_OPTIONS_OF_SLURM)
    }


def missing(program: str) -> UsageError:
    """The error for a machine without Slurm."""
    return UsageError(
        f"--slurm: no {program} on this machine; start the launch on a login node of the Slurm site"
    )


def ask(*argv: str) -> str:
    """The output of one of Slurm's programs. `MusterError` quotes its own error."""
    done = run(argv, os.environ, SECONDS)
    if done.returncode:
        raise MusterError(f"{argv[0]}: {error_of(done.stderr.splitlines()) or f'status {done.returncode}'}")
    return done.stdout


def run(argv: Sequence[str], environ: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs to its end. `MusterError` if it does not end within these seconds."""
    try:
        return subprocess.run(
            argv,
            env=for_slurm(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise missing(argv[0]) from None
    except subprocess.TimeoutExpired as late:
        printed = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else ""
        why = error_of(printed.splitlines()) or "is slurmctld running? try scontrol ping"
        raise MusterError(f"{argv[0]}: no answer within {seconds:.0f} s; {why}") from None


def error_of(lines: Sequence[str]) -> str:
    """The complaint among lines that a program of Slurm printed, without prefixes; empty if there is none.

    Slurm's last error may be general, while an earlier one, or a message of the site, names the mistake.
    """
    messages = [match for line in lines if (match := _MESSAGE.fullmatch(line.strip()))]
    others = [line.strip() for line in lines if line.strip() and not _MESSAGE.fullmatch(line.strip())]
    parts = [match["text"] for match in messages if match["error"] or not _ROUTINE.match(match["text"])]
    parts = [text for text in parts if text != _GENERAL] or parts or others[-1:]
    if any(map(_NO_CONFIG.search, parts)):
        return f"{parts[-1]}; set SLURM_CONF to the slurm.conf of the site"
    return "; ".join(dict.fromkeys(parts))


def host_names(nodelist: str) -> list[str]:
    """The names of a node list such as `node[1-3]`, in Slurm's order."""
    names = ask("scontrol", "show", "hostnames", nodelist).split()
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise MusterError(f"scontrol show hostnames {nodelist}: {wrong[0]!r} is not a host name")
    return names


def reaches(job: str, hosts: Sequence[str]) -> bool:
    """Whether Slurm can start a step on these hosts of an allocation."""
    number = len(hosts)
    where = (f"--jobid={job}", f"--nodelist={','.join(hosts)}", f"--nodes={number}", f"--ntasks={number}")
    try:
        options = ("--ntasks-per-node=1", "--gres=none", "--overlap", "--mpi=none", "--quiet")
        ask("srun", *where, *options, "/bin/true")
    except MusterError as error:
        return isinstance(error, UsageError)  # there is no srun here
    return True


def statuses_to_requeue() -> set[int]:
    """The exit statuses after which this site starts a batch job again: slurm.conf(5), RequeueExit."""
    config, statuses = _config(), set[int]()
    for part in ",".join(config.get(name, "") for name in ("requeueexit", "requeueexithold")).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            statuses |= {*range(int(first), min(int(last or first), 255) + 1)}
    return statuses


def kill_wait() -> float:
    """Seconds from SIGTERM to SIGKILL at this site when Slurm ends a job: slurm.conf(5), KillWait."""
    seconds = _config().get("killwait", "").partition(" ")[0]
    return float(seconds) if seconds.isdecimal() else KILL_WAIT


def _config() -> dict[str, str]:
    """The settings of this site; none if Slurm does not answer."""
    try:
        return parse_config(ask("scontrol", "show", "config"))
    except MusterError:
        return {}


def site(partition: str = "") -> SlurmSite:
    """The site of this login node; `error` if Slurm does not answer."""
    try:
        config, groups = ask("scontrol", "show", "config"), ask("sinfo", "-h", "--format=%R|%a|%D|%T|%E")
        return SlurmSite("", parse_config(config), parse_groups(groups), partition)
    except MusterError as error:
        return SlurmSite(error.reason)


OVERLAP = (20, 11)
"""The first version whose srun has --overlap (Slurm's RELEASE_NOTES of 20.11)."""
WELL = frozenset({"idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "plnd", "planned"})


class SiteFinding(NamedTuple):
    """A problem of the site, and its remedy, as `muster check` shows them."""

    severity: Literal["error", "warning"]
    id: str
    text: str
    remedy: str


error, warning = partial(SiteFinding, "error"), partial(SiteFinding, "warning")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that have the same state: a line of sinfo."""

    partition: str
    open: bool
    nodes: int
    state: str
    reason: str = ""


@dataclass(frozen=True)
class SlurmSite:
    """A Slurm site. `error`: why Slurm's controller did not answer; the rest is empty then."""

    error: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    """`scontrol show config`, names in lower case."""
    groups: Sequence[NodeGroup] = ()
    partition: str = ""
    """The partition that the user named; empty for all."""


def parse_config(text: str) -> dict[str, str]:
    """The settings of `scontrol show config`, names in lower case; `(null)` is an empty value."""
    pairs = re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE)
    return {name.lower(): "" if value == "(null)" else value for name, value in pairs}


def parse_groups(text: str) -> list[NodeGroup]:
    """Lines of `sinfo --format=%R|%a|%D|%T|%E`."""
    lines = [parts for line in text.splitlines() if len(parts := line.split("|", 4)) == 5]
    return [
        NodeGroup(name, is_open == "up", int(nodes), state, "" if reason == "none" else reason)
        for name, is_open, nodes, state, reason in lines
        if nodes.isdecimal()
    ]


def judge_site(site: SlurmSite) -> tuple[SiteFinding, ...]:
    """Problems of the site that prevent launches with --slurm."""
    if site.error:
        remedy = "work on a login node of the site; there: scontrol ping"
        return (error("slurm.no-controller", site.error, remedy),)
    return (*_nodes(site), *_version(site))


def _nodes(site: SlurmSite) -> Iterator[SiteFinding]:
    groups = [group for group in site.groups if site.partition in {"", group.partition}]
    named = f"partition {site.partition}" if site.partition else "Slurm"
    if not groups:
        yield error(
            "slurm.no-partition", f"{named}: no such partition, or no nodes", "see sinfo; then -p NAME"
        )
        return
    for name in dict.fromkeys(group.partition for group in groups if not group.open):
        remedy = "take another one (-p NAME), or ask the site's staff"
        severity = error if name == site.partition else warning
        yield severity("slurm.partition-closed", f"partition {name} takes no jobs", remedy)
    sick = [group for group in groups if group.state.rstrip("*~#!%$@^-") not in WELL]
    for group in sick:
        why = f": {group.reason}" if group.reason else ""
        text = f"partition {group.partition}: {group.nodes} nodes are {group.state}{why}"
        yield warning("slurm.nodes-unusable", text, "ask for fewer nodes, or ask the site's staff")
    if len(sick) == len(groups):
        yield error("slurm.no-nodes", f"{named}: no node can take a job", "see sinfo --list-reasons")


def _version(site: SlurmSite) -> Iterator[SiteFinding]:
    version = tuple(map(int, re.findall(r"\d+", site.config.get("slurm_version", ""))[:2]))
    if version and version < OVERLAP:
        text = f"Slurm {site.config['slurm_version']}: its srun has no --overlap, which Muster needs"
        yield error("slurm.too-old", text, "Slurm 20.11 or newer; until then: a hosts file and SSH")
