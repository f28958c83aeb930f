"""Completions for the scripts that `muster --print-completion-script bash|zsh|fish` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from ..plan.launcher import LAUNCHERS
from . import options
from .command import Command

SCRIPTS = {
    # The words before the cursor are handed over as they are; -o default: where nothing is offered, files.
    "bash": """_complete_{program}() {{
    COMPREPLY=($(compgen -W "$({program} --complete -- "${{COMP_WORDS[*]}}")" -- "$2"))
}}
complete -F _complete_{program} -o default {program}
""",
    "zsh": """_complete_{program}() {{
    reply=($({program} --complete -- "${{words}}"))
}}
compctl -K _complete_{program} + -f {program}
""",
    "fish": """function __complete_{program}
    {program} --complete -- (commandline --tokenize)
end
complete --command {program} --arguments '(__complete_{program})'
""",
}
CHOICES: Mapping[str, tuple[str, ...]] = {"--launcher": LAUNCHERS, "--backend": options.BACKENDS}


def script(shell: str, program: str) -> str:
    """The script that completes the program's command lines in a shell."""
    if shell not in SCRIPTS:
        raise UsageError(f"--print-completion-script {shell}".rstrip() + f": write {', '.join(SCRIPTS)}")
    return SCRIPTS[shell].format(program=program)


def candidates(line: str, commands: Mapping[str, Command]) -> list[str]:
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
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    for word in (last, before):
        if flag := CHOICES.get(command.spellings.get(word, word)):
            return list(flag)
    if command.flags.get(command.spellings.get(last, last), bool) is not bool:
        return []
    if last.startswith("-"):
        return sorted([*command.flags, *command.spellings, "--help"])
    return _jobs() if "job" in command.words and not before.startswith("-") else []


def _jobs() -> list[str]:
    """The jobs that were launched here, the newest first."""
    return sorted((path.name for path in Path("runs").glob("*/") if path.is_dir()), reverse=True)
