"""The program of a launch: a script, a shell script or a module, with its arguments."""

from __future__ import annotations

import os
import re
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from ..console.text import nearest
from ..errors import UsageError
from ..plan.program import Program
from ..plan.source_tree import Tree
from ..plan.walk import KEYS, RUNS
from .command import Declaration
from .launch_options import LaunchOptions

DEFAULT_MODULE = "muster.train"
HOSTS_OPTIONS = {"-H", "--hosts", "--hostfile", "-hostfile", "--machinefile", "-machinefile"}
MAIN = "__main__.py"
_SHELLS = {".sh": "sh", ".bash": "bash", ".zsh": "zsh"}
_PYTHON = re.compile(r"python[\d.]*")
_FIRST_BYTES = 256
MOST_READ = 2000
"""A larger tree is not searched for the options of the program: the launch would wait for that."""
_COMPILED = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")


def program_of(tree: Tree, folder: Path, *, script: str, module: str, args: str) -> Program:
    """The program of the ranks. A script must be a file of the tree, because a launch sends only the tree."""
    arguments = _arguments(args)
    if script and module:
        raise UsageError("--script and --module exclude each other; give one")
    if arguments and not (script or module):
        _require_no_program(arguments, folder)
    if module.startswith("-"):
        raise UsageError(f"--module {module}: a module name does not begin with a dash")
    if module and not all(part.strip() for part in module.split(".")):
        raise UsageError(f"--module {module}: not a module name; write package.module, without a leading dot")
    if module == "__main__":
        raise UsageError(f"--module {module}: Python has no such module; name the package: -m PACKAGE")
    if script:
        named, runner = _script(tree, folder, script)
        return Program(script=named, args=arguments, runner=runner)
    return Program(module=module or DEFAULT_MODULE, args=arguments)


def _require_no_program(arguments: Sequence[str], folder: Path) -> None:
    """`UsageError` for a script among the arguments of Muster's own program."""
    rest = arguments[1:] if _PYTHON.fullmatch(arguments[0]) else arguments
    if rest and rest[0].endswith(".py") and (folder / rest[0]).is_file():
        named = f"./{rest[0]}" if rest[0].startswith("-") else rest[0]
        raise UsageError(
            f"{arguments[0]} would be an argument of {DEFAULT_MODULE}; to run it: "
            f"launch {shlex.join([named, *rest[1:]])}"
        )


def notes_of(program: Program, tree: Tree) -> Iterator[str]:
    """Notes about arguments that the user may have meant otherwise."""
    sources = [file.path for file in tree.files if file.path.endswith(".py")]
    if program.module and not find_spec(program.module.partition(".")[0]):
        modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources]
        if program.module not in modules and (hint := nearest(program.module, modules)):
            yield f"note: no module {program.module} here{hint}"
    launch = Declaration(LaunchOptions)
    for argument, following in pairwise((*program.args, "")):
        option = launch.flag(argument.partition("=")[0]) if argument.startswith("--") else None
        if (
            option
            and len(sources) <= MOST_READ
            and not any(_contains(tree.root / path, argument.partition("=")[0]) for path in sources)
        ):
            has_value = option.kind is not bool and "=" not in argument
            name = program.script or program.module
            text = f"{argument} {following}" if has_value else argument
            yield f"note: {text.rstrip()} goes to {name}; for Muster write it before {name}"


def _contains(path: Path, text: str) -> bool:
    """Whether a source file contains a text, such as the name of an option of its program."""
    try:
        return text in path.read_text(errors="replace")
    except OSError:
        return False


def require_hosts_before(program: str, args: str, folder: Path) -> None:
    """`UsageError` for a hosts file among the arguments after the script, if the launch itself has none.

    These arguments are the program's, so the launch would run on the hosts of hosts.txt instead.
    """
    for argument, following in pairwise((*_arguments(args), "")):
        option, _, value = argument.partition("=")
        if option in HOSTS_OPTIONS and (folder / (value or following)).is_file():
            text = argument if value else f"{argument} {following}"
            raise UsageError(
                f"{text} comes after {program}, so it is an argument of the program; options of the launch "
                f"come first: launch {text} {program}. If it is for the program: launch --hosts "
                f"./hosts.txt {program} {text}"
            )


def _arguments(args: str) -> tuple[str, ...]:
    """The arguments in `--args`, split as by a shell."""
    try:
        arguments = tuple(shlex.split(args))
    except ValueError as error:
        raise UsageError(
            f"--args {args!r}: {error}; quote it as in a shell: --args=\"--name 'a b'\""
        ) from None
    for argument in arguments:
        if named := re.search(r"\$\{?(MUSTER_\w+)", argument):
            raise UsageError(
                f"{argument!r} would arrive unchanged: no shell expands arguments on the hosts; "
                f'in the program: os.environ["{named[1]}"]'
            )
    return arguments


def _script(tree: Tree, folder: Path, script: str) -> tuple[str, tuple[str, ...]]:
    """The script's path for the ranks, from the folder of the launch, and its interpreter; empty for Python.

    As for Python, it may be a folder or a zip archive with a `__main__.py`.
    """
    path = (folder / script).resolve()
    if not path.exists():
        starts = re.fullmatch(r"(python)[\d.]*|(?:ba|z|da)?sh", script)
        what = "Python" if starts and starts[1] else script
        hint = f"; Muster starts {what} itself: launch SCRIPT ..." if starts else ""
        hint = hint or nearest(script, [shlex.quote(file.path) for file in tree.files])
        raise UsageError(f"script {shlex.quote(script)}: no such file{hint}")
    root = tree.root.resolve()
    if not path.is_relative_to(root):
        raise UsageError(f"script {script}: outside {root}, the tree that a launch sends; move it there")
    if path.is_dir() and not (path / MAIN).is_file():
        raise UsageError(
            f"script {script}: a folder without {MAIN}; name a file in it: launch {Path(script)}/FILE.py"
        )
    sent = path / MAIN if path.is_dir() else path
    if str(sent.relative_to(root)) not in {file.path for file in tree.files}:
        raise UsageError(
            f"script {script}: ignored by git, or in {RUNS}/ or {KEYS}/, so no host would get it; "
            "take it out of .gitignore, or move it"
        )
    is_plain = not Path(script).is_absolute() and ".." not in Path(script).parts
    named = script if is_plain else os.path.relpath(path, folder.resolve())
    named = f"./{named}" if named.startswith("-") else named  # Python would take it for an option
    return named, () if path.is_dir() else _runner(path, script)


def _runner(path: Path, script: str) -> tuple[str, ...]:
    """The interpreter of a file that is no Python program, by its first line or its name."""
    try:
        with path.open("rb") as file:
            first = file.read(_FIRST_BYTES)
    except OSError as error:
        raise UsageError(f"script {script}: cannot be read: {error.strerror}") from None
    if first.startswith(_COMPILED):
        raise UsageError(
            f"script {script}: a compiled program; write a script that starts it, run.sh with the line "
            f'exec ./{path.name} "$@", then: launch run.sh'
        )
    if first.startswith(b"#!"):
        runner = first[2:].split(b"\n")[0].decode(errors="replace").split(maxsplit=1)
        return () if not runner or "python" in " ".join(runner) else tuple(part.strip() for part in runner)
    if shell := _SHELLS.get(path.suffix):
        return (shell,)
    if first.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if MAIN not in archive.namelist():
                raise UsageError(f"script {script}: a zip archive without {MAIN}, so Python cannot run it")
    return ()
