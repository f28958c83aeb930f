"""`muster completion`, and the completions for the scripts that it prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .command import Command, Declaration, flag
from .shared import RUNS_FOLDER

SCRIPTS = {
    # The words before the cursor are handed over as they are; -o default: where nothing is offered, files.
    "bash": """_complete_muster() {
    COMPREPLY=($(compgen -W "$(muster --complete -- "${COMP_WORDS[*]}")" -- "$2"))
}
complete -F _complete_muster -o default muster
""",
    "zsh": """_complete_muster() {
    reply=($(muster --complete -- "${words}"))
}
compctl -K _complete_muster + -f muster
""",
    "fish": """function __complete_muster
    muster --complete -- (commandline --tokenize)
end
complete --command muster --arguments '(__complete_muster)'
""",
}


@dataclass(frozen=True)
class Completion(Command):
    """Print a script that completes commands in bash, zsh or fish.

    In ~/.bashrc: eval "$(muster completion bash)"
    """

    shell: str = flag(
        "", ", ".join(SCRIPTS), takes="positional", required="which shell?", choices=tuple(SCRIPTS)
    )

    def run(self) -> None:
        """Print it."""
        sys.stdout.write(SCRIPTS[self.shell])


def candidates(line: str, commands: Mapping[str, Declaration]) -> list[str]:
    """The words that may follow `line`, which begins with the program's name; none where files may follow.

    The shells' scripts do not say whether a word has ended, so a command's whole name counts as ended.
    """
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # an open quote
        return []
    names = {name.replace(".", " ").split()[0] for name in commands}
    if words[:1] == ["help"]:
        words = words[1:]
    command = commands.get(words[0]) or commands.get(".".join(words[:2])) if words else None
    if command is None:
        family = [name.partition(".")[2] for name in commands if words and name.startswith(f"{words[0]}.")]
        return sorted(family or ({*names, "help"} if len(words) < 2 else ()))
    return _after_command(command, words)


def _after_command(command: Declaration, words: Sequence[str]) -> list[str]:
    """The words that may follow a command's name and perhaps more: values, options, jobs."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    for word in (last, before):
        if (flag := command.flag(word)) and flag.choices:
            return list(flag.choices)
    if (flag := command.flag(last)) and flag.kind is not bool:
        return []
    if last.startswith("-"):
        return sorted([*command.flags, *command.spellings, "--help"])
    if before.startswith("-"):
        return []
    chosen = next((list(each.choices) for each in command.positional if each.choices), [])
    return chosen or (_jobs() if "--job" in command.flags else [])


def _jobs() -> list[str]:
    """The jobs that were launched here, the newest first."""
    return sorted((path.name for path in Path(RUNS_FOLDER).glob("*/") if path.is_dir()), reverse=True)
