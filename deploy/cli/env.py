"""`muster env list`, `env remove` and `env diff`: the packages of the hosts."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from json import dumps

from ..connect.fanout import ask_every, ask_in_turn
from ..connect.requests.packages import ENVIRONMENT_FACTS, ENVIRONMENT_REMOVE, ENVIRONMENTS
from ..console.fold import fold, fold_names
from ..console.terminal import harmless
from ..console.text import count, size
from ..envs.diff import as_text, differences
from ..errors import UsageError
from ..hosts.environments import KEY, Environment
from .command import command
from .inventory import cluster_of
from .shared import HELP, explained

SECONDS, REMOVE_SECONDS = 30.0, 600.0
DAY = 86400.0


@command(help={**HELP, "json": "for programs"})
def list(  # noqa: A001  # the name of the command
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    json: bool = False,
    python: str = "",
) -> None:
    """List the environments of packages that launches with --requirements have made on the hosts."""
    with explained(), cluster_of(hosts, include, exclude, python) as cluster:
        answers = ask_every(cluster.channels, ENVIRONMENTS, SECONDS).require_all()
        there = {host: answer.environments for host, answer in answers.items()}
        if json:
            plain = {
                host: {key: asdict(known) for key, known in each.items()} for host, each in there.items()
            }
            sys.stdout.write(dumps(plain, indent=2) + "\n")
            return
        sys.stdout.write(_listing(there) or "no environments; muster launch --requirements FILE makes one\n")


@command(
    help={
        **HELP,
        "environment": "its name, as in muster env list; without it, every environment that no job uses",
    },
    words=("environment",),
)
def remove(  # a flag for each parameter
    environment: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Remove an environment of packages from the hosts, or all of them. Those that a job uses stay."""
    with explained():
        _require_name(environment)
        with cluster_of(hosts, include, exclude, python) as cluster:
            words = {"keys": [environment] if environment else [], "before": None}
            there = ask_every(cluster.channels, ENVIRONMENTS, SECONDS).require_all()
            homes = {host: answer.home for host, answer in there.items()}
            removals = ask_in_turn(
                cluster.channels, ENVIRONMENT_REMOVE, REMOVE_SECONDS, homes, lambda host: words
            ).require_all()
        if environment and not any(removal.removed or removal.kept for removal in removals.values()):
            raise UsageError(f"{environment}: there is no such environment; muster env list has the names")
        for host, removal in removals.items():
            in_use = f", {len(removal.kept)} in use" if removal.kept else ""
            gone = f"{count(len(removal.removed), 'environment')} removed{in_use}"
            sys.stdout.write(f"{host}: {gone}, {size(removal.freed)} freed\n")


@command(
    help={
        **HELP,
        "environment": "compare this environment's packages (default: those of the hosts' own Python)",
        "json": "for programs",
    },
    words=("environment",),
)
def diff(  # noqa: PLR0917  # a flag for each parameter
    environment: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    json: bool = False,
    python: str = "",
) -> None:
    """Name what differs between hosts: packages, Python, driver, kernel, limits, variables, mounts, ..."""
    with explained(), contextlib.ExitStack() as stack:
        _require_name(environment)
        cluster = cluster_of(hosts, include, exclude, python)
        if len(cluster.hosts) < 2:
            raise UsageError("env diff compares hosts, and there is only one")
        stack.enter_context(cluster)
        words = {"key": environment}
        asked = ask_every(cluster.channels, ENVIRONMENT_FACTS, SECONDS, lambda host: words)
        found = differences({host: answer.facts for host, answer in asked.require_all().items()})
        if json:
            sys.stdout.write(dumps([asdict(difference) for difference in found], indent=2) + "\n")
        else:
            text = as_text(found, len(cluster.hosts))
            sys.stdout.write("".join(f"{harmless(line)}\n" for line in text.splitlines()))


def _require_name(environment: str) -> None:
    """Refuse what cannot be the name of an environment, before a host is asked."""
    if environment and not re.fullmatch(KEY, environment):
        raise UsageError(f"{environment}: not an environment name; muster env list has the names")


def _listing(there: Mapping[str, Mapping[str, Environment]]) -> str:
    """A line for each environment: its name, what it has, its hosts."""
    lines = []
    for key in dict.fromkeys(key for each in there.values() for key in each):
        having = {host: each[key] for host, each in there.items() if key in each}
        for names, known in fold((host, _short(known)) for host, known in having.items()):
            days = (time.time() - max(having[name].used for name in names)) / DAY
            lines.append(f"{key}  {harmless(known)}  used {days:.0f} days ago  {fold_names(names)}\n")
    return "".join(lines)


def _short(known: Environment) -> str:
    torch = f", torch {known.torch}" if known.torch else ""
    packages = count(known.packages, "package")
    return f"{known.source}: {packages}, Python {known.python}{torch}, {size(known.bytes)}"
