"""Options of Muster among the arguments of the program: refused, noted, or left to the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import PurePosixPath

from ..core.errors import UsageError
from ..core.plan.flags import Flag
from ..core.plan.program import Program
from ..core.plan.source_tree import Tree
from .command import Declaration
from .launch_options import LaunchOptions

REFUSED = {"dry_run", "hosts", "np", "include", "exclude"}
"""Fields that promise that nothing starts, or choose the hosts."""
MOST_READ = 2000
"""Files that are searched for the options of the program: the launch waits for that."""


def notes_about_options(arguments: Sequence[str], program: Program, tree: Tree) -> Iterator[str]:
    """Notes about options of Muster among the program's arguments that no source mentions.

    `UsageError` for one that promises that nothing starts, or chooses the hosts.
    """
    found = [*_options_of_muster(arguments)]
    known = _mentioned({option: _mention(option) for option, *_ in found}, program, tree)
    others = [(flag, text) for option, flag, text in found if option not in known]
    name = shlex.join([program.script] if program.script else ["-m", program.module or ""])
    if refused := [text for flag, text in others if flag.field in REFUSED]:
        text = " ".join(refused)
        raise UsageError(
            f"{text} after {name} would go to the program, which mentions no such "
            f"{'option' if len(refused) == 1 else 'options'}; for Muster: launch {text} {name}; "
            f"for the program: launch {name} -- {text}"
        )
    for _, text in others:
        yield f"note: {text} goes to {name}; for Muster write it before {name}"


def _options_of_muster(arguments: Sequence[str]) -> Iterator[tuple[str, Flag, str]]:
    """The option, its flag, and its text with its value, for each argument that is an option of a launch.

    A long one may have one dash, and `_` for `-`; the value of a short one may follow it at once.
    """
    launch = Declaration(LaunchOptions)
    for argument, following in pairwise((*arguments, "")):
        option, equals, _ = argument.partition("=")
        if attached := re.fullmatch(r"(-[A-Za-z])\d+", argument):
            option, equals = attached[1], attached[1]
        name = option.lstrip("-").replace("_", "-")
        flag = launch.flag(f"-{name}" if len(name) == 1 else f"--{name}") if option[:1] == "-" else None
        if flag and not (attached and flag.kind is not int):
            value = [following] if flag.kind is not bool and not equals and following else []
            yield option, flag, shlex.join([argument, *value])


def _mention(option: str) -> re.Pattern[str]:
    """How a source mentions an option: as a text, or a long one as the name of a typed parameter too."""
    name = re.escape(option.lstrip("-").replace("_", "-")).replace(r"\-", "[-_]")
    if len(name) == 1:
        return re.compile(rf"[\"'|]-{name}(?![\w-])|^\s*\(?-{name}[)|]", re.MULTILINE)
    return re.compile(rf"(?<![\w-])--?{name}(?![\w-])|[\"']{name}[\"']|\b{name}\s*:")


def _mentioned(options: Mapping[str, re.Pattern[str]], program: Program, tree: Tree) -> set[str]:
    """The options that a source of the tree mentions. In a large tree those beside the program come first."""
    main = program.script or f"{(program.module or '').replace('.', '/')}.py"
    beside = PurePosixPath(tree.within, main).parent
    paths = [file.path for file in tree.files if file.path.endswith(".py") or file.path.endswith(main)]
    paths.sort(key=lambda path: not PurePosixPath(path).is_relative_to(beside))
    known = set[str]()
    for path in islice(paths, MOST_READ):
        if known == options.keys():
            break
        try:
            source = (tree.root / path).read_text(errors="replace")
        except OSError:
            continue
        known |= {option for option, pattern in options.items() if pattern.search(source)}
    return known
