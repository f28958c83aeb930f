"""Hints about the end of a job, from the last lines of its ranks: what was wrong, with the remedy.

Hints about modules, files and disks are in file_hints.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from ...core.hosts.facts import Facts
from ...core.job.events import Event, LauncherOutput
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.plan import openmpi
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import clip, count, span
from ...core.wire.variables import is_foreign
from ..samples.messages import HostSample
from .file_hints import SharedMemory, full_disk, last_lines, left_behind, missing_module, sent_elsewhere
from .gpu_hints import failed_on_gpu

MOST_ERROR = 200
GLOO = 'init_process_group("gloo")'
# argparse's message, and that of click and typer.
_REFUSED = re.compile(r"(?:unrecognized arguments:|[Nn]o such option:?) (-[-\w]+)")
_NOT_BUILT = re.compile(r"Distributed package doesn't have (\w+) built in")
_NO_GPU = re.compile(r"ProcessGroupNCCL is only supported with GPUs")
_NO_KEY = re.compile(r"KeyError: '([A-Z][A-Z0-9_]*)'\s*$")
_NONE = re.compile(r"^TypeError: .*'?NoneType'?")
_GET = re.compile(r"(?:environ\.get|getenv)\(\s*[\"']([A-Z][A-Z0-9_]*)[\"']")
_CHILD = re.compile(r"Process \w[\w.:-]*:\s*$")
"""The line of multiprocessing above the traceback of a process that failed."""


class Hints(Feature):
    """Adds a hint about the failure, and one about processes that failed without failing their rank."""

    def __init__(self) -> None:
        self.shared: dict[str, SharedMemory] = {}
        """The most of /dev/shm that was in use on each host."""
        self._lacks_slots = False

    def begins(self, attempt: Attempt) -> None:
        """Of an earlier attempt nothing counts."""
        self.shared, self._lacks_slots = {}, False

    def on_event(self, event: Event) -> None:
        """Samples show how full /dev/shm is. mpirun prints that MPI_Comm_spawn found no free slot."""
        if isinstance(event, LauncherOutput) and openmpi.is_full(event.text):
            self._lacks_slots = True
        if isinstance(event, HostSample) and event.shm is not None and event.shm_total:
            before = self.shared.get(event.host)
            most = max(event.shm, before.used if before else 0)
            self.shared[event.host] = SharedMemory(most, event.shm_total)

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Add them to the notes."""
        notes = [*result.notes, *([openmpi.FULL] if self._lacks_slots else []), *failed_children(result)]
        is_here = not attempt.folder.detached
        if result.failure and (text := hint(result, attempt.cluster.facts, self.shared, here=is_here)):
            notes.append(text)
        return dataclasses.replace(result, notes=tuple(notes))


def hint(
    result: LaunchResult, facts: Mapping[str, Facts], shared: Mapping[str, SharedMemory], *, here: bool
) -> str:
    """The first hint that fits the failure; empty for none.

    `shared`: /dev/shm of each host. `here`: the tree's folder is on this machine.
    """
    return (
        missing_module(result, facts, here=here)
        or refused_option(result)
        or failed_on_gpu(result, facts)
        or full_disk(result, shared)
        or missing_backend(result, facts)
        or foreign_variable(result)
        or (variable_of_shell(result) if here else "")
        or keyboard(result)
        or repository(result)
        or (left_behind(result) if here else "")
        or sent_elsewhere(result)
        or unexplained_stall(result)
    )


def unexplained_stall(result: LaunchResult) -> str:
    """A hint about a job of several hosts that stalled, if no rank is the cause; else empty."""
    explained = result.why and result.why.culprits
    if not result.failure or result.failure.kind != "stall" or explained or len(result.plan.hosts) < 2:
        return ""
    return "muster check --bench measures every link and host"


def refused_option(result: LaunchResult) -> str:
    """A hint about an option after the script that the program does not have; else empty."""
    options = {argument.partition("=")[0] for argument in result.plan.spec.program.args}
    for line in last_lines(result):
        if (match := _REFUSED.search(line)) and match[1] in options:
            return f"the program got {match[1]}; an option of muster launch stands before the script"
    return ""


# -- backends --


def missing_backend(result: LaunchResult, facts: Mapping[str, Facts]) -> str:
    """A hint about a backend of torch.distributed that the host of the failure lacks; else empty."""
    host = result.failure.host if result.failure else None
    if host is None or host not in facts:
        return ""
    for line in last_lines(result):
        if match := _NOT_BUILT.search(line):
            return _not_built(match[1], host, facts[host], result.plan.spec.launcher)
        if _NO_GPU.search(line):
            return f"NCCL is for GPUs, and {host} has none: {GLOO}"
    return ""


def _not_built(backend: str, host: str, facts: Facts, launcher: str) -> str:
    torch = f"torch {facts.torch}" if facts.torch else "torch"
    what = f"{torch} on {host} was built without {backend}"
    if backend == "MPI":
        return f"{what}. Muster's MPI backend: {_own_mpi(facts, launcher)}"
    if backend != "NCCL":
        return f"{what}; every torch has Gloo: {GLOO}"
    if facts.gpus:
        return f"{what}: install a build for its {count(facts.gpus, 'GPU')} there, or {GLOO}"
    return f"{what}, which is for GPUs, and {host} has none: {GLOO}"


def _own_mpi(facts: Facts, launcher: str) -> str:
    """How a program uses Muster's MPI backend. From torch 2.14 on, it may have the name mpi."""
    if _may_be_named_mpi(facts.torch or ""):
        how = 'call register_mpi() of muster.train before init_process_group("mpi")'
    else:
        how = "from muster.train import register_mpi, and init_process_group(register_mpi())"
    needs = "" if facts.mpi4py else "; it needs mpi4py there"
    other = f", with --launcher mpirun; or, with torchrun, {GLOO}" if launcher == "torchrun" else ""
    return f"{how}{needs}{other}"


def _may_be_named_mpi(torch: str) -> bool:
    """Whether this version of torch lets a backend take the name (train/mpi_backend/__init__.py)."""
    match = re.match(r"(\d+)\.(\d+)", torch)
    return match is not None and (int(match[1]), int(match[2])) >= (2, 14)


# -- variables --

_SET_BY = {
    **dict.fromkeys(("OMPI_", "PMIX_"), "mpirun"),
    **dict.fromkeys(("GROUP_", "ROLE_", "TORCHELASTIC_"), "torchrun"),
    "SLURM_": "srun",
    "PMI_": "MPICH's mpirun",
}
_SAME = {
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "PMIX_RANK": "RANK",
    "ROLE_RANK": "RANK",
    "ROLE_WORLD_SIZE": "WORLD_SIZE",
    "SLURM_PROCID": "RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_LOCALID": "LOCAL_RANK",
    "PMI_RANK": "RANK",
    "PMI_SIZE": "WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "RANK",
    "MV2_COMM_WORLD_SIZE": "WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
}
"""Variables of one launcher, and those with the same value that every rank has."""


def foreign_variable(result: LaunchResult) -> str:
    """A hint about a variable that the program missed, and that only another launcher sets; else empty."""
    launcher = result.plan.spec.launcher
    for name in _missed([*last_lines(result)]):
        by = next((by for prefix, by in _SET_BY.items() if name.startswith(prefix)), launcher)
        if by != launcher:
            same = [f"with every launcher Muster sets {_SAME[name]}"] if name in _SAME else []
            change = f"add --launcher {by}" if by in {"mpirun", "torchrun"} else ""
            other = [f"or {change}" if same else change] if change else []
            return "; ".join([f"only {by} sets {name}", *same, *other])
    return ""


def variable_of_shell(result: LaunchResult) -> str:
    """A hint about a variable that the program missed, and that this shell has; else empty."""
    own = dict(result.plan.spec.env)
    for name in _missed([*last_lines(result)]):
        if name in os.environ and name not in own and not is_foreign(name):
            return f"this shell has {name}, and ranks get none of its variables; add --env {name}"
    return ""


# -- what a rank does not have: a keyboard, and the repository --


_READS_KEYS = re.compile(r"bdb\.BdbQuit\b|EOFError: EOF when reading a line")
_READS_GIT = re.compile(
    r"fatal: not a git repository|InvalidGitRepositoryError|Command '(?:\['git',|git )"
    r"|No such file or directory: '(?:\.git[/']|git')"
)


def keyboard(result: LaunchResult) -> str:
    """A hint about a program that reads from a terminal, as `breakpoint()` and `input()` do; else empty."""
    if not any(map(_READS_KEYS.search, last_lines(result))):
        return ""
    return (
        "no keyboard reaches a rank, so breakpoint() and input() fail; while a job runs, "
        "muster eval JOB EXPRESSION and muster stacks JOB look into its ranks, and an editor can stop one: "
        "docs/how-to/editor.md"
    )


def repository(result: LaunchResult) -> str:
    """A hint about a program that asks git for its commit; else empty."""
    if not any(map(_READS_GIT.search, last_lines(result))):
        return ""
    if not result.plan.spec.tree.commit:
        return "a launch sends the files of the tree, and no .git"
    return 'a launch sends no .git; the commit is os.environ["MUSTER_GIT_COMMIT"] in every rank'


def _missed(lines: Sequence[str]) -> Iterator[str]:
    """The variables that a program missed: of a KeyError, or in the code of a traceback about None."""
    is_none = False
    for line in lines:  # the last one first
        if match := _NO_KEY.search(line):
            yield match[1]
        is_none = is_none or bool(_NONE.search(line))
        if is_none:
            yield from _GET.findall(line)


# -- processes that a rank started --


def failed_children(result: LaunchResult) -> tuple[str, ...]:
    """Notes about ranks that ended with status 0 although a process that they started failed."""
    errors = (
        (rank, error)
        for rank, end in sorted(result.ends.items())
        if end.code == 0 and (error := _error_of_child(end.tail))
    )
    return tuple(
        f"{span(ranks)} ended with status 0, but "
        f"{'a process that it' if len(ranks) == 1 else 'processes that they'} started failed: {error}"
        for ranks, error in fold(errors)
    )


def _error_of_child(tail: Sequence[str]) -> str:
    """The exception of the first process that failed, without the name of its module; empty for none."""
    lines = iter(line[:MOST_ERROR] for line in tail)
    for line in lines:
        if _CHILD.match(line) and next(lines, "").startswith("Traceback ("):
            error = next((line for line in lines if line.strip() and not line[0].isspace()), "")
            kind, colon, text = error.partition(":")
            return clip(harmless(f"{kind.rpartition('.')[2]}{colon}{text}".strip()), MOST_ERROR)
    return ""
