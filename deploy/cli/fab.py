"""Muster's commands in a fabfile: `namespace = commands()`.

fab reads its own options, then the fabfile. If a command of Muster follows, Muster's program parses and runs
it, as `muster` does, and fab never gets it. fab lists the commands, and runs the other tasks of the fabfile.
"""

from __future__ import annotations

import sys
from typing import Any

from fabric.main import program as fab
from invoke import Collection, Context, Exit, Task

from .commands import FAMILIES, MODULES, load


def commands() -> Collection:
    """Muster's commands for a fabfile. Does not return if `fab` was started with one of them."""
    core = getattr(fab, "core", None)  # None if another program reads the fabfile
    argv = list(core.unparsed) if core else []
    firsts = {name.partition(".")[0] for name in MODULES}
    if not argv or argv[0].partition(".")[0] not in {*firsts, "help"}:
        return _collection()
    if fab.args.hosts.value:
        raise Exit(f"--hosts comes after the command: fab {argv[0]} --hosts {fab.args.hosts.value}", 2)
    # fab makes Python compile every module again at each start. Keep compiled modules from now on.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    from .dispatch import main

    # fab put the fabfile's folder first. A json.py or docker/ in it is the project's.
    del sys.path[0]
    return main(_without_fabs_own(fab.argv, len(argv), dry=bool(fab.args.dry.value)), "fab")  # exits


def _collection() -> Collection:
    """A task for each command, for `fab --list` and for other programs that read the fabfile."""
    root = Collection()
    groups: dict[str, Collection] = {}
    for name, summary in (entry for family in FAMILIES.values() for entry in family.items()):
        group, _, last = name.rpartition(".")
        if group and group not in groups:
            groups[group] = Collection(group)
            root.add_collection(groups[group])
        (groups[group] if group else root).add_task(_task(name, summary), last)
    return root


def _task(name: str, summary: str) -> Task[Any]:
    def body(context: Context) -> None:
        load(name).run({})

    body.__doc__ = summary
    return Task(body, name=name.rpartition(".")[2])


def _without_fabs_own(argv: list[str], left: int, *, dry: bool) -> list[str]:
    """The arguments without fab's own options. The last `left` of them before a -- are Muster's."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [*(["--dry"] if dry else []), *argv[end - left :]]
