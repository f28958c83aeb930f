"""The request of a launch: from the flags to launch.json it is this one value."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..decode import from_json
from ..errors import UsageError
from ..hosts.hostfile import Host
from .flags import Options, flag
from .source_tree import Tree

_REPLACE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program of every rank: a module or a script of the tree, and its arguments."""

    module: str | None = None
    script: str | None = None
    args: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    """The interpreter of a script that is no Python program, such as `bash`; empty for Python."""
    python: str = ""
    """`3.11`: the version of Python that alone can run it, for code of a function; empty for any."""

    def argv(self, *, abort_with_mpi: bool) -> tuple[str, ...]:
        """The arguments for Python.

        With MPI, an uncaught exception in one rank leaves the others waiting in MPI_Finalize forever;
        `python -m mpi4py` makes it an MPI_Abort (mpi4py manual, "mpi4py.run").
        """
        if self.runner:  # it replaces Python, with the same process id
            return ("-c", _REPLACE, *self.runner, self.script or "", *self.args)
        runner = ("-m", "mpi4py") if abort_with_mpi else ()
        target = ("-m", self.module) if self.module else (self.script or "",)
        return (*runner, *target, *self.args)


T = TypeVar("T", bound=Options)
LauncherName = Literal["mpirun", "torchrun"]
LAUNCHERS: tuple[LauncherName, ...] = ("mpirun", "torchrun")
DEFAULT_LAUNCHER: LauncherName = "mpirun"
BACKENDS = ("auto", "gloo", "nccl", "mpi", "hccl")
START_SECONDS = 60.0
MAX_LOG = 500 << 20
"""Bytes that each log of a run may take on the driver's disk, unless --max-log gives another number."""
ALL_GPUS = -1
"""In place of a number of GPUs of each host: all of them."""
NO_PROGRAM, NO_FILES = Program(), Tree(Path(), ".", ())

# A value under a name like these is shown as *** in a plan and is written to no file of the driver.
SECRET = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "_KEY")


def size(option: str, text: str, *, least: int = 0) -> int:
    """A number of bytes: `500M`, `8G`, or a number without a unit."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)", text.upper())
    if not match or int(match[1]) < least:
        raise UsageError(f"{option} {text}: write a number of bytes such as 500M or 8G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def network(text: str) -> str:
    """A CIDR as `ipaddress` writes it, or the name of an interface."""
    if "/" in text:
        try:
            return str(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            raise UsageError(f"--network {text}: {error}; write 10.1.0.0/16, or an interface: eth1") from None
    if text and not re.fullmatch(r"[A-Za-z0-9._:@-]{1,15}", text):
        raise UsageError(f"--network {text!r}: not a name of an interface; write eth1, or 10.1.0.0/16")
    return text


@dataclass(frozen=True)
class RequestFlags:
    """The flags of a launch that its request has as they are. A new flag of the core is added here alone."""

    np: int = flag(
        0,
        "number of ranks (default: all slots)",
        "N",
        least=1,
        also=("-n", "--ntasks", "--num-processes"),
        group="Most used",
    )
    backend: str = flag(
        "auto",
        "backend of torch.distributed: auto (default), gloo, nccl, mpi or hccl; the program gets it as "
        "MUSTER_BACKEND",
        "NAME",
        choices=BACKENDS,
        group="What runs",
    )
    keep: tuple[str, ...] = flag(
        (),
        "a folder of the program, such as checkpoints, that each host keeps from one launch to the next, at "
        "the same path; may be repeated",
        "PATH",
        group="What runs",
    )
    network: str = flag(
        "",
        "network of the ranks: a CIDR, or an interface of the first host (default: one that all hosts reach)",
        "NETWORK",
        also=("--network-interface",),
        parse=network,
        group="Where it runs",
    )
    max_restarts: int = flag(
        0,
        "how often to start again after a failure, on the hosts that still work (default: 0)",
        "N",
        least=0,
        group="Most used",
    )
    spares: int = flag(
        0,
        "keep this many more hosts than --np needs ready, to replace hosts that fail (default: 0)",
        "N",
        least=1,
        group="Survive failures",
    )
    grace: float = flag(
        30,
        "seconds from SIGTERM to SIGKILL for ranks that handle SIGTERM, and for processes that a rank leaves "
        "behind (default: 30)",
        "SECONDS",
        least=0,
        group="Survive failures",
    )
    start_timeout: float = flag(
        0,
        "seconds until every rank must have started (default: 60); also until a scheduler must have given "
        "hosts, for which there is no limit without this flag",
        "SECONDS",
        least=1,
        group="Survive failures",
    )
    max_log: int = flag(
        MAX_LOG,
        "limit for each log of the run here: 200M, 4G (default: 500M; 0: none); a longer log keeps its "
        "beginning and its last lines, and its host has all of it",
        "BYTES",
        parse=partial(size, "--max-log"),
        group="Look at it",
    )


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(RequestFlags):
    """The checked request of the user, complete before any host is asked. A detached job's head gets it."""

    job: str
    user: str = ""
    """The user who launches it, on the machine of the command."""
    command: tuple[str, ...] = ()
    """The command line of the user, without options that have their default value."""
    sources: tuple[str, ...] = ()
    """`--np 4: muster.toml:1`: the place of each option, if a file of the project has given any."""
    program: Program = NO_PROGRAM
    tree: Tree = NO_FILES
    project: str = ""
    """The name of its kept folders on every host. The paths of `keep` begin at the root of the tree."""
    library: Tree = NO_FILES
    """What every rank can import besides the tree: `muster.train`. The user's modules come first."""

    # Where
    hosts: tuple[Host, ...] = ()
    """All hosts that it may use, in the order of the hosts file. Some may get no rank."""
    launcher: LauncherName = DEFAULT_LAUNCHER
    python: str = ""
    """The Python of the hosts, if the user named one."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Otherwise, the path of the Python that setup gave a host, by host name. Other hosts use `python3`."""

    # The environment of its ranks
    env: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    """Names in `env`, and flags, whose values are never shown, even if they do not look like a secret."""
    columns: int | None = None
    """Width of the driver's terminal; None if its output is not a terminal."""

    # How it runs, and when it starts again
    attempt: int = 0
    """The number of earlier starts of this job."""
    may_restart: bool = False
    min_hosts: int = 1
    features: Mapping[str, Options] = field(default_factory=dict)
    """The options of features, by the names of their classes; see `of`."""

    @property
    def start_seconds(self) -> float:
        return self.start_timeout or START_SECONDS

    def of(self, kind: type[T]) -> T:
        """The options of a feature."""
        part = self.features.get(kind.__name__)
        return part if isinstance(part, kind) else kind()

    def having(self, *parts: Options) -> LaunchSpec:
        """The same request with these options of features."""
        return replace(self, features={**self.features, **{type(part).__name__: part for part in parts}})

    def for_attempt(self, hosts: Sequence[Host], attempt: int) -> LaunchSpec:
        """The request of an attempt. With fewer hosts there may be fewer ranks than before."""
        ranks = min(self.np, sum(host.slots for host in hosts)) if attempt else self.np
        return replace(self, np=ranks, attempt=self.attempt + attempt)

    def as_json(self) -> dict[str, Any]:
        """Plain values. They contain the environment, so never write them to a file or a command line."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain

    @staticmethod
    def of_json(value: Mapping[str, Any], kinds: Iterable[type[Options]]) -> LaunchSpec:
        """The request from the result of `as_json`; `kinds`: of the options of features."""
        core = {**value, "features": {}}
        parts = value.get("features", {})
        decoded = (from_json(kind, parts[kind.__name__]) for kind in kinds if kind.__name__ in parts)
        spec: LaunchSpec = from_json(LaunchSpec, core)
        return spec.having(*decoded)


def is_secret(name: str, hidden: Container[str]) -> bool:
    """Whether a value must not be shown: the user passed it as a secret, or its name is that of one."""
    return name in hidden or any(part in name.upper() for part in SECRET)
