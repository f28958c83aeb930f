"""The record of a launch, launch.json. `muster report` shows it. It has no secrets: see `hidden_values`."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Container, Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from typing import Any

from ..hosts.host_facts import Facts
from ..plan.launch_plan import LaunchPlan
from ..plan.spec import is_secret

HIDDEN = "***"
# The name of an option that takes a secret: --hf-token, --api_key. --tokenizer and --max-tokens take none.
# A dash inside a word begins no option: trying each dash of a text from a host would take quadratic time.
_LAST_WORD = "token|secret|password|passwd|passphrase|credentials?|auth|(?:api|access|private|secret)[-_]?key"
_SECRET_OPTION = re.compile(rf"(?i)((?<![\w-])--?(?:[a-z0-9]+[-_])*(?:{_LAST_WORD}))([= ])('[^']*'|\S+)")


def hidden_values(text: str) -> str:
    """A command line, with the values of options that take a secret replaced by `***`."""
    return _SECRET_OPTION.sub(rf"\1\2{HIDDEN}", text)


def launched(plan: LaunchPlan, facts: Mapping[str, Facts]) -> dict[str, Any]:
    """The content of launch.json: everything that may make two runs differ."""
    program, spec = plan.spec.program, plan.spec
    return {
        "job": spec.job,
        "attempt": spec.attempt,
        "muster": _version(),
        "driver_python": platform.python_version(),
        **({"command": shown_command(spec.command, spec.hidden)} if spec.command else {}),
        **({"commit": spec.tree.commit, "clean": spec.tree.clean} if spec.tree.commit else {}),
        "program": program.script or f"-m {program.module}",
        "args": _without_secrets(program.args),
        "launcher": spec.launcher,
        "backend": spec.backend,
        "ranks": len(plan.ranks),
        **{name: value for added in plan.added.values() for name, value in added.record.items()},
        "env": {name: HIDDEN if is_secret(name, spec.hidden) else value for name, value in spec.env},
        "options": {
            "grace": spec.grace,
            "start-timeout": spec.start_seconds,
            "max-restarts": spec.max_restarts,
            "min-hosts": spec.min_hosts,
            "network": spec.network,
            **{name: value for part in spec.features.values() for name, value in part.recorded.items()},
        },
        "hosts": [
            {
                "name": host.host.name,
                "ranks": [placed.rank for placed in host.ranks],
                **(_facts(facts[host.host.name]) if host.host.name in facts else {}),
            }
            for host in plan.hosts
        ],
        "code": {
            "root": str(plan.spec.tree.root),
            "files": {file.path: file.link or file.digest for file in plan.spec.tree.files},
        },
    }


def _facts(facts: Facts) -> dict[str, Any]:
    names = ("python", "executable", "torch", "mpi4py", "mpi", "cores", "gpus")
    return {name: getattr(facts, name) for name in names}


def shown_command(tokens: Sequence[str], hidden: Container[str]) -> str:
    """Options of a command line. A secret of --env is left to the environment of the next user."""
    shown: list[str] = []
    for option, token in pairwise(("", *tokens)):
        name = token.partition("=")[0]
        if option == "--env" and is_secret(name, hidden):
            shown.append(name)
        elif option.startswith("--") and option in hidden:
            shown.append(HIDDEN)
        else:
            shown.append(token)
    return shlex.join(_without_secrets(shown))


def _without_secrets(args: Sequence[str]) -> list[str]:
    """The arguments without secrets, which may be separate arguments or follow an equals sign."""
    shown: list[str] = []
    for argument in args:
        before = shown[-1] if shown else ""
        is_value = not argument.startswith("-") and hidden_values(f"{before} x") != f"{before} x"
        shown.append(HIDDEN if is_value else hidden_values(argument))
    return shown


def _version() -> str:
    try:
        return metadata.version("muster-cluster")
    except metadata.PackageNotFoundError:  # a detached driver is sent as source
        return ""
