"""Muster's commands in a fabfile: `namespace = commands()`.

fab reads its own options, then the fabfile. If what follows is a command of Muster, Muster's own program
reads it, as under `muster`, and fab never sees it. Other tasks of the fabfile stay fab's.
"""

from __future__ import annotations

import sys

from fabric.main import program as fab
from invoke import Collection, Exit

from .commands import NAMES, collection


def commands() -> Collection:
    """Muster's commands for a fabfile; does not come back if `fab` was started with one of them."""
    core = getattr(fab, "core", None)  # none where something else reads the fabfile
    words = list(core.unparsed) if core else []
    if not words or words[0].partition(".")[0] not in {*NAMES, "help"}:
        return collection()
    if fab.args.hosts.value:
        raise Exit(f"--hosts comes after the command: fab {words[0]} --hosts {fab.args.hosts.value}", 2)
    # fab has Python compile every module anew at every start. What is compiled from here on is kept.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    from .program import Muster  # noqa: PLC0415

    # fab put the fabfile's folder first. A json.py or a docker/ there is the project's, and none of ours.
    del sys.path[0]
    Muster("fab").run(_without_fabs_own(fab.argv, len(words), dry=bool(fab.args.dry.value)))
    sys.exit(0)


def _without_fabs_own(argv: list[str], left: int, *, dry: bool) -> list[str]:
    """The command line without what fab has read for itself: `left` words before a -- are ours."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [argv[0], *(["--dry"] if dry else []), *argv[end - left :]]
