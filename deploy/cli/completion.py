"""`muster completion`, and the completions for the scripts that it prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.runs import is_job_id
from .command import Command, Declaration, flag
from .shared import RUNS_FOLDER

SCRIPTS = {
    # muster gets the command line up to the cursor. Its lines are candidates as they are: no shell expands
    # them, as `compgen -W` would. -o default: without candidates, complete file names.
    "bash": """_complete_muster() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        if [[ $candidate == "$2"* ]]; then
            COMPREPLY+=("$candidate")
        fi
    done < <(muster --complete -- "${COMP_WORDS[*]}")
}
complete -F _complete_muster -o default muster
""",
    "zsh": """_complete_muster() {
    local -a words
    read -cA words
    reply=("${(@f)$(muster --complete -- "${words}")}")
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
    """The candidates after `line`, which begins with the program's name; none where files may follow.

    The shells' scripts do not pass on whether the last argument is complete. The whole name of a command is.
    """
    try:
        argv = shlex.split(line)[1:]
    except ValueError:  # an open quote
        return []
    names = {name.replace(".", " ").split()[0] for name in commands}
    if argv[:1] == ["help"]:
        argv = argv[1:]
    command = commands.get(argv[0]) or commands.get(".".join(argv[:2])) if argv else None
    if command is None:
        family = [name.partition(".")[2] for name in commands if argv and name.startswith(f"{argv[0]}.")]
        return sorted(family or ({*names, "help"} if len(argv) < 2 else ()))
    return _after_command(command, argv)


def _after_command(command: Declaration, argv: Sequence[str]) -> list[str]:
    """The candidates after the arguments of a command: values, options, jobs."""
    last, before = argv[-1], argv[-2] if len(argv) > 1 else ""
    for argument in (last, before):
        if (flag := command.flag(argument)) and flag.choices:
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
    """The jobs of this folder, the newest first. Other names may hold commands for the shell."""
    return sorted((path.name for path in Path(RUNS_FOLDER).glob("*/") if is_job_id(path.name)), reverse=True)
