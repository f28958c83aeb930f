"""The keywords of `launch` and `run`: the long flags of `muster launch`, with `_` for `-`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ..cli.command import Declaration
from ..console.text import nearest
from ..errors import UsageError
from ..plan.spec import LauncherName

Path = str | os.PathLike[str]


class RunFlags(TypedDict, total=False):
    """The flags that `run` takes. docs/reference/commands/jobs.md has their meanings."""

    hosts: Path
    np: int
    per_host: int
    gpus: str | int
    env: Mapping[str, str] | Sequence[str]
    requirements: Path
    image: str
    detach: bool
    max_restarts: int
    stall_timeout: int
    profile: str
    keep: str | Sequence[str]
    backend: Literal["auto", "gloo", "nccl", "mpi", "hccl"]
    include: str
    exclude: str
    network: str
    python: str
    runs: Path
    slots: str | int
    wait: str | int
    python_version: str
    system_torch: bool
    torch_backend: str
    engine: str
    mount: str | Sequence[str]
    min_hosts: int
    spares: int
    preload: bool
    grace: int
    start_timeout: int
    rank: str | int
    no_record: bool
    max_log: str
    notify: str
    timings: bool
    slurm: str | Literal[True]
    launcher: LauncherName


class LaunchFlags(RunFlags, total=False):
    """The flags that `launch` takes too, besides `script`."""

    module: str
    args: str
    dry_run: bool


def values_of(command: Declaration, keywords: Mapping[str, object]) -> dict[str, Any]:
    """The values of flags by their names; `UsageError` for one that a command line may not have either.

    None is the same as no value.
    """
    by_field = {flag.field: flag for flag in command.flags.values()}
    values = {}
    for name, value in keywords.items():
        if name not in by_field:
            raise UsageError(f"a launch has no keyword {name}{nearest(name, by_field)}")
        if value is not None:
            flag = by_field[name]
            values[flag.name] = flag.accepted(name, _plain(value, flag.kind))
    return values


def _plain(value: object, kind: type) -> object:
    """A value as a command line has it: paths and numbers may be texts, and variables NAME=VALUE."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return [f"{name}={text}" for name, text in value.items()]
    return str(value) if kind is str and type(value) is int else value
