"""The program of a launch: a script, a shell script or a module, with its arguments."""

from __future__ import annotations

import ast
import os
import re
import shlex
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice, pairwise, takewhile
from pathlib import Path, PurePosixPath

from ..core.errors import UsageError
from ..core.plan.flags import Flag
from ..core.plan.git import git_root
from ..core.plan.source_tree import Tree
from ..core.plan.spec import Program
from ..core.plan.walk import KEYS, RUNS
from ..core.text.text import nearest
from ..core.wire.users import home
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


DEFAULT_MODULE = "muster.train"
MAIN = "__main__.py"
_MAIN_FILES = ("train.py", "main.py")
_NO_MAIN_FILES = {"fabfile.py", "setup.py", "conftest.py"}
_NO_PROGRAM = "not a program of Python or a shell"
_SHELLS = {".sh": "sh", ".bash": "bash", ".zsh": "zsh"}
_PYTHON = re.compile(r"python[\d.]*")
_STARTERS = re.compile(
    r"(?P<launcher>torchrun|mpirun|mpiexec|srun|horovodrun|accelerate|deepspeed)"
    rf"|(?P<shell>(?:ba|z|da)?sh)|{_PYTHON.pattern}|uv|poetry|pipenv|conda"
)
_FIRST_BYTES = 256
_COMPILED = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"MZ")
_DATA = (ast.Dict, ast.List, ast.Tuple, ast.Constant, ast.Name, ast.UnaryOp)


def program_of(tree: Tree, folder: Path, *, script: str, module: str, args: str) -> Program:
    """The program of the ranks. A script must be a file of the tree, because a launch sends only the tree."""
    arguments = _arguments(args)
    if (script or module) and arguments[:1] == ("--",):  # it says that what follows is for the program
        arguments = arguments[1:]
    if script and module:
        raise UsageError("--script and --module exclude each other; give one")
    if arguments and not (script or module):
        _require_no_program(arguments, folder)
    if module.startswith("-"):
        raise UsageError(f"--module {module}: a module name does not begin with a dash")
    if (file := module.removesuffix(".py")) != module or "/" in module:
        names = {f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"}
        if not names & {file.path for file in tree.files}:
            raise UsageError(
                f"--module {module}: a file is no module; to run it: launch {shlex.quote(f'{file}.py')}; "
                f"as a module: launch -m {shlex.quote(file.strip('./').replace('/', '.'))}"
            )
    if module and not all(part.strip() for part in module.split(".")):
        raise UsageError(f"--module {module}: not a module name; write package.module, without a leading dot")
    if module == "__main__":
        raise UsageError(f"--module {module}: Python has no such module; name the package: -m PACKAGE")
    if script:
        named, runner = _script(tree, folder, script, arguments)
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


def note_of_default(tree: Tree) -> Iterator[str]:
    """A note that a launch without a program runs Muster's own, if the folder of the launch has one."""
    names = {path.name for path in Path(tree.root, tree.within).glob("*.py")} - _NO_MAIN_FILES
    if here := next((name for name in _MAIN_FILES if name in names), names.pop() if len(names) == 1 else ""):
        yield f"note: this trains Muster's own network on handwritten digits; yours: muster launch {here}"


def notes_of(program: Program, tree: Tree, args: str) -> Iterator[str]:
    """Notes about arguments that the user may have meant otherwise.

    `args`: as in `program_of`. `UsageError` for an argument that must not be misunderstood.
    """
    sources = [file.path for file in tree.files if file.path.endswith(".py")]
    if program.module and not find_spec(program.module.partition(".")[0]):
        modules = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources]
        if program.module not in modules and (hint := nearest(program.module, modules)):
            yield f"note: no module {program.module} here{hint}"
    if program.module != DEFAULT_MODULE:
        before = [*takewhile(lambda argument: argument != "--", _arguments(args))]
        yield from notes_about_options(before, program, tree)


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


def _script(tree: Tree, folder: Path, script: str, arguments: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The script's path for the ranks, from the folder of the launch, and its interpreter; empty for Python.

    As for Python, it may be a folder or a zip archive with a `__main__.py`.
    """
    path = (folder / script).resolve()
    root, exists = tree.root.resolve(), path.exists()
    is_sent = exists and path.is_relative_to(root)
    if hint := "" if is_sent else _without_starter(folder, script, arguments):
        raise UsageError(f"script {shlex.quote(script)}: no program of this folder{hint}")
    if not exists:
        hint = nearest(script, [shlex.quote(file.path) for file in tree.files])
        raise UsageError(f"script {shlex.quote(script)}: no such file{hint}")
    if not is_sent:
        start = git_root(path.parent) or path.parent
        cd, name = shlex.quote(str(start)), shlex.quote(os.path.relpath(path, start))
        inside = f"~/{cd.removeprefix(f'{home()}/')}" if cd.startswith(f"{home()}/") else cd
        raise UsageError(
            f"script {script}: outside {root}, the tree that a launch sends; its own tree: "
            f"cd {inside} && muster launch {name}"
        )
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


def _without_starter(folder: Path, script: str, arguments: Sequence[str]) -> str:
    """A hint about a whole command line, an interpreter or another launcher in place of a script."""
    try:
        first, *rest = shlex.split(script)
    except ValueError:
        return ""
    name = PurePosixPath(first).name
    if not (starts := _STARTERS.fullmatch(name)):
        is_file = rest and (folder / first).is_file()
        return f"; without quotes: launch {shlex.join((first, *rest))}" if is_file else ""
    what = name if starts["shell"] else "the ranks" if starts["launcher"] else "Python"
    words = [*rest, *arguments]
    at = next((at for at, each in enumerate(pairwise((*words, ""))) if _is_program(*each)), None)
    if at is None:
        at = 0 if words and words[0][0] != "-" and not starts["launcher"] else len(words)
    return f"; Muster starts {what} itself: launch {shlex.join(words[at:]) or 'SCRIPT ...'}"


def _is_program(word: str, following: str) -> bool:
    """Whether a word of a command line is a program, or says that a module follows."""
    return PurePosixPath(word).suffix in {".py", *_SHELLS} or (
        word == "-m" and not following.startswith("torch.distributed.")
    )


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
    if first.startswith(b"PK") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if MAIN not in archive.namelist():
                raise UsageError(f"script {script}: a zip archive without {MAIN}, so Python cannot run it")
        return ()
    if path.suffix == ".pyc":
        return ()
    if b"\0" in first:
        raise UsageError(f"script {script}: {_NO_PROGRAM}, but binary data")
    if first.startswith(b"#!"):
        runner = first[2:].split(b"\n")[0].decode(errors="replace").split(maxsplit=1)
        return () if not runner or "python" in " ".join(runner) else tuple(part.strip() for part in runner)
    if shell := _SHELLS.get(path.suffix):
        return (shell,)
    if path.suffix != ".py" or first.lstrip()[:1] in {b"{", b"["}:
        _require_python(path, script)
    return ()


def _require_python(path: Path, script: str) -> None:
    """`UsageError` for a file that is not a program of Python. JSON and YAML may be Python without effect."""
    if path.suffix == ".ipynb":
        raise UsageError(
            f"script {script}: a notebook, not a program; launch from inside it (docs/how-to/python.md), or "
            f"make a program of it: jupyter nbconvert --to script {shlex.quote(script)}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ranks show those of the program
            content = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f"{error}"
        raise UsageError(f"script {script}: {_NO_PROGRAM} ({place})") from None
    except OSError as error:
        raise UsageError(f"script {script}: cannot be read: {error.strerror}") from None
    if all(
        isinstance(each.value, _DATA)
        if isinstance(each, ast.Expr)
        else isinstance(each, ast.AnnAssign) and not each.value
        for each in content
    ):
        raise UsageError(f"script {script}: {_NO_PROGRAM}, but data without a statement that does anything")
