"""Adds a project's own defaults to the flags of a command line.

A launch takes every value, also those of a profile. Other commands take hosts, runs and python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.plan.flags import Flag
from .command import PROFILE, Declaration, Source
from .project_file import Layer, Setting, project_of

COMMAND_LINE = "command line"


def with_defaults(
    command: Declaration, values: Mapping[str, Any], folder: Path = Path()
) -> tuple[dict[str, Any], tuple[Source, ...]]:
    """The values of flags with those of the project, and the source of each if the project has given any."""
    shared = [flag for flag in command.flags.values() if flag.of_project]
    project = project_of(folder) if shared else None
    profile = values.get(PROFILE, "")
    if profile and project is None:
        raise UsageError(
            f"{PROFILE} {profile}: no muster.toml, and no [tool.muster] in a pyproject.toml, in this folder "
            "or a parent"
        )
    if project is None:
        return dict(values), ()
    if PROFILE in command.flags:
        layers = project.layers(command, profile)
    else:
        layers = [{flag.name: setting for flag in shared if (setting := project.setting(flag))}]
    given = {name: Setting(value, COMMAND_LINE) for name, value in values.items()}
    merged = _merged(command.flags, [given, *layers])
    if not any(layers):
        return dict(values), ()
    sources = tuple(
        Source(name, value, setting.place)
        for name, settings in merged.items()
        for setting in settings
        for value in (setting.value if isinstance(setting.value, tuple) else (setting.value,))
    )
    return {name: _joined(settings) for name, settings in merged.items()}, sources


def _merged(flags: Mapping[str, Flag], layers: Sequence[Layer]) -> dict[str, list[Setting]]:
    """The settings of each flag. The first layer wins; the values of a repeated flag are joined."""
    chosen = dict[str, list[Setting]]()
    for layer in layers:
        replaced = {f"--{field.replace('_', '-')}" for name in chosen for field in flags[name].replaces}
        for name, setting in layer.items():
            if name not in chosen and name not in replaced:
                chosen[name] = [setting]
            elif name in chosen and flags[name].kind is tuple:
                chosen[name] = [setting, *chosen[name]]
    return chosen


def _joined(settings: Sequence[Setting]) -> Any:
    first, *more = (setting.value for setting in settings)
    return sum(more, first) if more else first


def mentioned(text: str, sources: Sequence[Source]) -> Iterator[str]:
    """The places of the flags that a message names, if a file has set them."""
    for source in sources:
        if source.place != COMMAND_LINE and re.search(rf"{source.flag}(?![\w-])", text):
            yield f"{source.flag}: {source.place}"
