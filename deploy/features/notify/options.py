"""The flag of notifications."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import UsageError
from ...core.plan.flags import Options, flag


@dataclass(frozen=True)
class NotifyOptions(Options):
    """Whom a job tells of a stall and of its end."""

    notify: str = flag(
        "",
        "at a stall and at the end, start this command with JSON on its standard input",
        "COMMAND",
        group="Look at it",
        secret=True,
    )

    def check(self, given: Mapping[str, Any]) -> None:
        """`UsageError` for a value that is not a command, or whose program does not exist here."""
        command = self.notify
        if command.lower().startswith(("http://", "https://")):  # it may be the secret of a chat: not shown
            raise UsageError("--notify URL was removed: use --notify 'curl -d @- URL'")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--notify: {error}; quote the command as in a shell") from None
        if command and not (words and words[0].strip()):
            raise UsageError("--notify: write a command")
        if command and not (given.get("detach") or shutil.which(words[0])):
            raise UsageError(f"--notify: no program {words[0]} here")
