"""What Invoke's parser does not know, spelled as it does: words without a flag, -f, and a command after --.

    fab logs JOB -f          fab logs --job=JOB --follow
    fab run -- ls -l         fab run --command='ls -l'

Invoke has positional arguments, but none that may be left out, and takes `--help` for the value of one that
may not. fab itself wants what follows -- for its own --hosts. The fabfile is read between the two passes of
the parser, so that is where this is done.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Collection, Mapping, Sequence

from invoke import Collection as Tasks
from invoke import Exit
from invoke.program import Program

# The words that a command may have, in their order, as the names of its flags.
WORDS: Mapping[str, Sequence[str]] = {
    "status": ("job",),
    "logs": ("job",),
    "attach": ("job",),
    "stop": ("job",),
    "stacks": ("job",),
    "put": ("file", "to"),
    "get": ("file", "to"),
    "shell": ("host",),
}
SHORT = {"logs": {"-f": "--follow"}}


def read_words(program: Program, tasks: Tasks) -> None:
    """Spell out what was written after `fab`, before Invoke reads it as tasks."""
    core = getattr(program, "core", None)
    if not core or not core.unparsed:
        return
    command = core.unparsed[0]
    core.unparsed[:] = spell_out(core.unparsed, _valued(tasks, command))
    if core.remainder and command != "run":
        raise Exit(f"fab {command} takes nothing after --", 2)
    if core.remainder:
        core.unparsed.append(f"--command={shlex.join(program.argv[program.argv.index('--') + 1 :])}")
        core.remainder = ""


def _valued(tasks: Tasks, command: str) -> set[str]:
    """The flags of a command that take a value.

    Not from Invoke's own contexts: to make them takes the help texts away from the tasks (Task.arg_opts).
    """
    if command not in tasks.task_names:
        return set()
    parameters = inspect.signature(tasks[command].body).parameters.values()
    return {f"--{one.name.replace('_', '-')}" for one in parameters if not isinstance(one.default, bool)}


def spell_out(tokens: Sequence[str], valued: Collection[str]) -> list[str]:
    """The tokens of one command with a flag for every word; `valued` are the flags that take a value."""
    command, *rest = tokens
    names = list(WORDS.get(command, ()))
    spelled = [command]
    is_value = False
    for token in rest:
        flag = SHORT.get(command, {}).get(token, token)
        if names and not is_value and not token.startswith("-"):
            spelled.append(f"--{names.pop(0)}={token}")
        else:
            spelled.append(token if is_value else flag)
        is_value = not is_value and flag in valued
    return spelled
