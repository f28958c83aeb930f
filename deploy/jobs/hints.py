"""Hints about a failure of the program: a missing file or module, or a refused option, with the remedy."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..console.terminal import harmless
from ..launch.result import LaunchResult
from ..plan.launch_plan import LaunchPlan

_MISSING = re.compile(r"(?:FileNotFoundError|No such file or directory)\b.*?: (b?'.*'|b?\".*\")\s*$")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)(?:\.[\w.]*)?'\s*$")
# argparse's message, and that of click and typer.
_REFUSED = re.compile(r"(?:unrecognized arguments:|[Nn]o such option:?) (-[-\w]+)")
MOST_LINE = 2048  # of a line, from its end: the patterns are slow on longer ones
_REQUIREMENTS = ("requirements.txt", "uv.lock", "pyproject.toml")


def _last_lines(result: LaunchResult) -> Iterator[str]:
    """The lines that a rank printed before its failure, the last one first."""
    return (line[-MOST_LINE:] for line in reversed(result.failure.tail if result.failure else ()))


def refused_option(result: LaunchResult) -> str:
    """A hint about an option after the script that the program does not have; else empty."""
    options = {argument.partition("=")[0] for argument in result.plan.spec.program.args}
    for line in _last_lines(result):
        if (match := _REFUSED.search(line)) and match[1] in options:
            return f"the program got {match[1]}; an option of muster launch stands before the script"
    return ""


def missing_module(result: LaunchResult) -> str:
    """A hint about the module that a rank could not import: in the tree, or of a package; else empty."""
    for line in _last_lines(result):
        if match := _NO_MODULE.search(line):
            return _explain_module(match[1], result.plan)
    return ""


def _explain_module(name: str, plan: LaunchPlan) -> str:
    sent = [PurePosixPath(file.path) for file in plan.spec.tree.files]
    wanted = (PurePosixPath(f"{name}.py"), PurePosixPath(name, "__init__.py"))
    folders = [str(_before(path, tail)) for path in sent for tail in wanted if _ends_with(path, tail)]
    if folders:
        nearest = os.path.relpath(min(folders, key=len), plan.spec.tree.within)
        path = shlex.quote(nearest)
        return f"the tree has a module {name}, where Python does not look; add --env PYTHONPATH={path}"
    program = PurePosixPath(plan.spec.tree.within, plan.spec.program.script or "").parent
    searched = (program, PurePosixPath(plan.spec.tree.within), PurePosixPath("."))
    for listing in (folder / name for folder in searched for name in _REQUIREMENTS):
        if listing in sent and not plan.spec.environment:
            path = os.path.relpath(listing, plan.spec.tree.within)
            return (
                f"the hosts have no {name}; launch with --requirements {shlex.quote(path)} if that lists it"
            )
    return ""


def _ends_with(path: PurePosixPath, tail: PurePosixPath) -> bool:
    return path.parts[-len(tail.parts) :] == tail.parts


def _before(path: PurePosixPath, tail: PurePosixPath) -> PurePosixPath:
    """The folder from which Python would import a module whose path ends with `tail`."""
    return PurePosixPath(*path.parts[: -len(tail.parts)])


def left_behind(result: LaunchResult) -> str:
    """A hint about a missing file of a rank that exists here and was not sent; else empty."""
    for line in _last_lines(result):
        if match := _MISSING.search(line):
            return _explain(_text(match[1]), result.plan)
    return ""


def _text(quoted: str) -> str:
    """The text that a repr of Python stands for. It comes from a rank, so it may be anything."""
    try:
        value = ast.literal_eval(quoted)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    return os.fsdecode(value) if isinstance(value, str | bytes) else ""


def _explain(name: str, plan: LaunchPlan) -> str:
    inner = _in_tree(name, plan)
    if not inner:
        return ""
    sent = {file.path for file in plan.spec.tree.files}
    for path in (inner, str(PurePosixPath(inner).parent)):
        kind = _kind_of(plan.spec.tree.root, path)
        if kind and not any(name == path or name.startswith(f"{path}/") for name in sent):
            return (
                f"the {kind} {harmless(path)} exists here, but was not sent: a launch leaves out what git "
                "ignores, and empty folders; copy it with muster put, or take it out of .gitignore"
            )
    return ""


def _in_tree(name: str, plan: LaunchPlan) -> str:
    """The path, relative to the top of the tree, of a path on a host; empty if it is not in the tree."""
    if "\0" in name or not name:
        return ""
    for host in plan.hosts:
        code = PurePosixPath(host.folder, "code")
        if PurePosixPath(name).is_relative_to(code):
            name = str(PurePosixPath(plan.spec.tree.root, PurePosixPath(name).relative_to(code)))
            break
    path = os.path.relpath(Path(plan.spec.tree.root, plan.spec.tree.within, name), plan.spec.tree.root)
    return "" if path == ".." or path.startswith("../") else os.path.normpath(path)


def _kind_of(root: Path, path: str) -> str:
    """`file` or `folder`; empty for the tree itself, and for a path that does not exist."""
    try:
        full = root / path
        return "" if path == "." or not full.exists() else "folder" if full.is_dir() else "file"
    except OSError:  # for example, a name that is too long
        return ""
