"""The request of a launch: from the flags to launch.json it is this one value."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..decode import from_json
from ..hosts.hostfile import Host
from .flags import Options
from .program import Program
from .source_tree import Tree

T = TypeVar("T", bound=Options)
LauncherName = Literal["mpirun", "torchrun"]
LAUNCHERS: tuple[LauncherName, ...] = ("mpirun", "torchrun")
DEFAULT_LAUNCHER: LauncherName = "mpirun"
START_SECONDS, GRACE_SECONDS = 60.0, 30.0
MAX_LOG = 500 << 20
"""Bytes that each log of a run may take on the driver's disk, unless --max-log gives another number."""
ALL_GPUS = -1
"""In place of a number of GPUs of each host: all of them."""
NO_PROGRAM, NO_FILES = Program(), Tree(Path(), ".", ())

# A value under a name like these is shown as *** in a plan and is written to no file of the driver.
SECRET = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "_KEY")


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
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
    library: Tree = NO_FILES
    """What every rank can import besides the tree: `muster.train`. The user's modules come first."""

    # Where
    hosts: tuple[Host, ...] = ()
    """All hosts that it may use, in the order of the hosts file. Some may get no rank."""
    launcher: LauncherName = DEFAULT_LAUNCHER
    allocation: str = ""
    """The scheduler's number of the allocation that the hosts belong to; empty for hosts of a hosts file."""
    np: int | None = None
    python: str = ""
    """The Python of the hosts, if the user named one."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Otherwise, the path of the Python that setup gave a host, by host name. Other hosts use `python3`."""
    network: str = ""
    """The data network: a CIDR, or the name of an interface of the head; empty for the first that works."""

    # The environment of its ranks
    backend: str = "auto"
    env: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    """Names in `env`, and flags, whose values are never shown, even if they do not look like a secret."""
    columns: int | None = None
    """Width of the driver's terminal; None if its output is not a terminal."""

    # How it runs, and when it starts again
    start_timeout: float = START_SECONDS
    grace: float = GRACE_SECONDS
    """Seconds from SIGTERM to SIGKILL for a rank that handles SIGTERM; also for what a rank left behind."""
    attempt: int = 0
    """The number of earlier starts of this job."""
    may_restart: bool = False
    max_restarts: int = 0
    min_hosts: int = 1
    spares: int = 0
    """The number of hosts beyond those with ranks that are made ready for the next attempt."""
    max_log: int = MAX_LOG
    """Bytes that each of its logs may take on the disk of its driver; 0 for no limit."""
    features: Mapping[str, Options] = field(default_factory=dict)
    """The options of features, by the names of their classes; see `of`."""

    def of(self, kind: type[T]) -> T:
        """The options of a feature."""
        part = self.features.get(kind.__name__)
        return part if isinstance(part, kind) else kind()

    def having(self, *parts: Options) -> LaunchSpec:
        """The same request with these options of features."""
        return replace(self, features={**self.features, **{type(part).__name__: part for part in parts}})

    def for_attempt(self, hosts: Sequence[Host], attempt: int) -> LaunchSpec:
        """The request of an attempt. With fewer hosts there may be fewer ranks than before."""
        ranks = self.np
        if ranks and attempt:
            ranks = min(ranks, sum(host.slots for host in hosts))
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
