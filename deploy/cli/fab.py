"""Muster's commands in a fabfile: `namespace = commands()`.

fab reads its own options, then the fabfile. If a command of Muster follows, Muster's program parses and runs
it, as `muster` does, and fab never sees it. fab runs the other tasks of the fabfile.
"""

from __future__ import annotations

import sys

from fabric.main import program as fab
from invoke import Collection, Exit

from .commands import NAMES, collection


def commands() -> Collection:
    """Muster's commands for a fabfile. Does not return if `fab` was started with one of them."""
    core = getattr(fab, "core", None)  # None if another program reads the fabfile
    words = list(core.unparsed) if core else []
    if not words or words[0].partition(".")[0] not in {*NAMES, "help"}:
        return collection()
    if fab.args.hosts.value:
        raise Exit(f"--hosts comes after the command: fab {words[0]} --hosts {fab.args.hosts.value}", 2)
    # fab makes Python compile every module again at each start. From here on, compiled modules are kept.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    from .program import Muster  # noqa: PLC0415

    # fab put the fabfile's folder first. A json.py or docker/ there belongs to the project and is not for us.
    del sys.path[0]
    Muster("fab").run(_without_fabs_own(fab.argv, len(words), dry=bool(fab.args.dry.value)))
    sys.exit(0)


def _without_fabs_own(argv: list[str], left: int, *, dry: bool) -> list[str]:
    """The command line without the options of fab. The last `left` words before a -- are Muster's."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [argv[0], *(["--dry"] if dry else []), *argv[end - left :]]
