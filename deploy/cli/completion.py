"""`muster completion`: click's scripts, which pass the candidates on without expanding them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from click.shell_completion import BashComplete, FishComplete, ZshComplete

from ..core.plan.flags import flag
from .command import Command

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@dataclass(frozen=True)
class Completion(Command):
    """Print a script that completes commands in bash, zsh or fish.

    In ~/.bashrc: eval "$(muster completion bash)"
    """

    shell: str = flag(
        "", ", ".join(SHELLS), takes="positional", required="which shell?", choices=tuple(SHELLS)
    )

    def run(self) -> None:
        sys.stdout.write(script_for(self.shell))


def script_for(shell: str) -> str:
    """The script of a shell."""
    from .dispatch import COMPLETE, Commands  # which imports this module

    script = SHELLS[shell](Commands(), {}, "muster", COMPLETE).source()
    # That for bash would run the command as it is typed, perhaps ./muster in a cloned repository.
    return script.replace("=bash_complete $1)", "=bash_complete muster)")
