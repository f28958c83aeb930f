"""Reads command lines as the program does, without running a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.deploy.cli.dispatch import context_of


@dataclass(frozen=True)
class Call:
    """The command of a command line, image.build, and the values that it gives to flags."""

    command: str
    values: Mapping[str, Any]


def parse(words: Sequence[str], program: str = "muster") -> Call:
    """`UsageError` for an invalid command line; click's `Exit` after a help text."""
    context = context_of(words, program)
    return Call(".".join(context.command_path.split()[1:]), context.obj)
