"""The hosts that an SSH configuration names: what `ssh` completes, and what a user calls these machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from ..common.users import expanded

DEEPEST = 16  # ssh(1) follows as many files that include each other


def aliases(config: Path, folder: Path) -> tuple[str, ...]:
    """The names of the Host lines of a configuration and of what it includes, in order, without patterns.

    `folder`: where relative paths of Include begin, ~/.ssh for a user's own configuration (ssh_config(5)).
    """
    return tuple(dict.fromkeys(_names(config, folder, DEEPEST)))


def _names(config: Path, folder: Path, deep: int) -> Iterator[str]:
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no configuration names no hosts; ssh itself reports one that it cannot read
        return
    for line in lines:
        word, *values = _words(line)
        if word == "host":
            yield from (value for value in values if not {*value} & {*"*?!"})
        elif word == "include" and deep:
            for value in values:
                path = Path(expanded(value))
                base, pattern = (Path("/"), str(path)[1:]) if path.is_absolute() else (folder, str(path))
                for included in sorted(base.glob(pattern)):
                    yield from _names(included, folder, deep - 1)


def _words(line: str) -> list[str]:
    """The keyword of a line in lower case, and its values; `Host=a` is read as `Host a`."""
    keyword, _, rest = line.strip().replace("=", " ", 1).replace("\t", " ").partition(" ")
    if not keyword or keyword.startswith("#"):
        return [""]
    try:
        return [keyword.lower(), *shlex.split(rest, comments=True)]
    except ValueError:  # a quote without an end: ssh refuses the line
        return [""]
