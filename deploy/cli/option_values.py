"""Parses the values of options. Every mistake is a `UsageError` with a correct example."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import termios
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..core.errors import UsageError
from ..core.hosts.bounds import MOST_RANKS
from ..core.hosts.hostfile import Host
from ..core.plan.launch_plan import Placement
from ..core.text.text import clip, count
from ..core.wire.variables import is_of_ranks
from .shared import require_rank

STDIN = 0  # file descriptor
UNREAD_INPUT = "note: ranks do not read standard input; put the data in a file of the project"
_SET_BY = {
    "MUSTER_BACKEND": "; --backend chooses it",
    **dict.fromkeys(("RANK", "WORLD_SIZE"), "; --np and slots= set the number of ranks"),
    "MASTER_ADDR": "; --network chooses the network of the ranks",
}
"""Options in place of variables that Muster sets."""


def new_job() -> str:
    """A new job id. Ids sort by time, and two launches at the same time get different ones."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def environment(settings: Iterable[str], environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Parse `K=V`, and `K` with its value from `environ`: a secret need not be on the command line."""
    pairs = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                f"--env {setting}: write NAME=value, or NAME to take its value from this machine"
            )
        if is_of_ranks(name):
            raise UsageError(
                f"--env {name}: Muster and its launcher set {name} in every rank; leave it out"
                f"{_SET_BY.get(name, '')}"
            )
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: not set here; write {name}=value")
        if "\0" in (value := value if equals else environ[name]):
            raise UsageError(f"--env {name}: a value cannot hold a NUL character")
        pairs.append((name, value))
    return tuple(pairs)


def taken_from_here(settings: Iterable[str]) -> tuple[str, ...]:
    """The names that were given without a value, which is how users pass secrets."""
    return tuple(setting for setting in settings if "=" not in setting)


def has_data(descriptor: int) -> bool:
    """Whether a pipe, socket or file has unread data. It reads nothing and does not wait."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) < status.st_size
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            return any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except OSError:  # closed, or a socket without a connection
        return False
    return False


def min_hosts(number: int, used: Sequence[Host]) -> int:
    """The smallest number of hosts for a restart; by default all hosts of the job."""
    if number > len(used):
        raise UsageError(f"--min-hosts {number}: the job has {count(len(used), 'host')}")
    return number or len(used)


def require_spares(number: int, placement: Placement) -> None:
    """`UsageError` if fewer hosts than this have no rank."""
    if number > len(placement.spares):
        few = count(len(placement.spares), "host")
        remedy = "list more hosts, or lower --np or --spares"
        raise UsageError(f"--spares {number}: {few} of the hosts file would have no rank; {remedy}")


def with_gpus(hosts: Sequence[Host], number: int | None) -> tuple[Host, ...]:
    """The hosts with a slot for each GPU of `--gpus`; without any GPU, with those of the hosts file."""
    return tuple(replace(host, slots=number, slots_by_default=False) if number else host for host in hosts)


def require_ranks(chosen: frozenset[int] | None, count: int) -> None:
    """`UsageError` for a list with a rank that the job does not have."""
    if beyond := (chosen or frozenset()) - {*range(count)}:
        require_rank(max(beyond), count)


def ranks(text: str) -> frozenset[int]:
    """The ranks of a list such as `0,4-7`."""
    chosen: set[int] = set()
    for part in text.split(","):
        if not (match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)):
            raise UsageError(f"--rank {text}: write numbers and ranges of ranks: 0,4-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"--rank {text}: {part} is not a range; write {last}-{first}")
        if last - first + len(chosen) > MOST_RANKS:
            raise UsageError(f"--rank {clip(text)}: more than {MOST_RANKS} ranks")
        chosen |= set(range(first, last + 1))
    return frozenset(chosen)
