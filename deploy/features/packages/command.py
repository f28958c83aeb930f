"""`muster env list` and `env remove`: the packages of the hosts."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ...cli.inventory import hosts_or_this_machine, reached_hosts
from ...cli.shared import JSON, HostOptions, write_json
from ...core.connect.fanout import ask_every, one_of_each
from ...core.errors import UsageError
from ...core.plan.flags import flag
from ...core.text.fold import fold, fold_names
from ...core.text.terminal import harmless
from ...core.text.text import count, size
from .messages import ENVIRONMENT_REMOVE, ENVIRONMENTS, KEY, Environment

SECONDS, REMOVE_SECONDS = 30.0, 600.0
DAY = 86400.0


@dataclass(frozen=True)
class EnvList(HostOptions):
    """List the environments of packages on the hosts (launch --requirements)."""

    json: bool = flag(False, JSON)

    def run(self) -> None:
        with reached_hosts(self, hosts_or_this_machine) as (cluster, errors):
            answers = ask_every(cluster.channels, ENVIRONMENTS, SECONDS)
            errors.update(answers.errors)
            hosts = {host: answer.environments for host, answer in answers.results.items()}
            if self.json:
                write_json(
                    {host: {key: asdict(made) for key, made in each.items()} for host, each in hosts.items()}
                )
            else:
                none = "no environments; muster launch --requirements FILE makes one\n"
                sys.stdout.write(_listing(hosts) or none)


@dataclass(frozen=True)
class EnvRemove(HostOptions):
    """Remove an environment of packages from the hosts, or all that no job uses."""

    environment: str = flag(
        "",
        "its name, as in muster env list; without it, every environment that no job uses",
        takes="positional",
    )

    def run(self) -> None:
        """Remove them host by host, and print the freed space of each."""
        name = self.environment
        _require_name(name)
        with reached_hosts(self, hosts_or_this_machine) as (cluster, errors):
            fields = {"keys": [name] if name else []}
            answers = ask_every(cluster.channels, ENVIRONMENTS, SECONDS)
            homes = {host: answer.home for host, answer in answers.results.items()}
            chosen = one_of_each(cluster.channels, homes)
            outcomes = ask_every(chosen, ENVIRONMENT_REMOVE, REMOVE_SECONDS, lambda host: fields)
            errors.update({**answers.errors, **outcomes.errors})
            removals = outcomes.results
            if name and not errors and not any(done.removed or done.kept for done in removals.values()):
                raise UsageError(f"{name}: no such environment; muster env list has the names")
            for host, removal in removals.items():
                in_use = f", {len(removal.kept)} in use" if removal.kept else ""
                freed = f"{count(len(removal.removed), 'environment')} removed{in_use}"
                sys.stdout.write(f"{host}: {freed}, {size(removal.freed)} freed\n")


def _require_name(environment: str) -> None:
    """`UsageError` for an invalid name of an environment, before any host is asked."""
    if environment and not re.fullmatch(KEY, environment):
        raise UsageError(f"{environment}: not an environment name; muster env list has the names")


def _listing(environments: Mapping[str, Mapping[str, Environment]]) -> str:
    """A line for each environment: its name, its packages, its hosts."""
    lines = []
    for key in dict.fromkeys(key for each in environments.values() for key in each):
        having = {host: each[key] for host, each in environments.items() if key in each}
        for names, text in fold((host, _described(made)) for host, made in having.items()):
            days = (time.time() - max(having[name].used for name in names)) / DAY
            lines.append(f"{key}  {harmless(text)}  used {days:.0f} days ago  {fold_names(names)}\n")
    return "".join(lines)


def _described(made: Environment) -> str:
    torch = f", torch {made.torch}" if made.torch else ""
    packages = count(made.packages, "package")
    return f"{made.source}: {packages}, Python {made.python}{torch}, {size(made.bytes)}"
