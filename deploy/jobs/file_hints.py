"""Hints about a missing module or file of the program, from the tree that was sent, and about a full disk.

A disk may also be the memory that processes share as files.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..console.terminal import harmless
from ..launch.result import LaunchResult
from ..plan.launch_plan import LaunchPlan

_MISSING = re.compile(r"(?:FileNotFoundError|No such file or directory)\b.*?: (b?'.*'|b?\".*\")\s*$")
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '(\w+)(?:\.[\w.]*)?'\)?\s*$"
    r"|^\S*python[\d.]*: No module named (\w+)[\w.]*\s*$"
)
MOST_LINE = 2048  # of a line, from its end: the patterns are slow on longer ones
_REQUIREMENTS = ("requirements.txt", "uv.lock", "pyproject.toml")


def last_lines(result: LaunchResult) -> Iterator[str]:
    """The lines that a rank printed before its failure, the last one first."""
    return (line[-MOST_LINE:] for line in reversed(result.failure.tail if result.failure else ()))


def missing_module(result: LaunchResult) -> str:
    """A hint about the module that a rank could not import: in the tree, or of a package; else empty."""
    for line in last_lines(result):
        if match := _NO_MODULE.search(line):
            host = result.failure.host if result.failure else None
            return _explain_module(match[1] or match[2], host or "a host", result.plan)
    return ""


def _explain_module(name: str, host: str, plan: LaunchPlan) -> str:
    sent = [PurePosixPath(file.path) for file in plan.spec.tree.files]
    wanted = (PurePosixPath(f"{name}.py"), PurePosixPath(name, "__init__.py"))
    folders = [str(_before(path, tail)) for path in sent for tail in wanted if _ends_with(path, tail)]
    if folders:
        nearest = os.path.relpath(min(folders, key=len), plan.spec.tree.within)
        path = shlex.quote(nearest)
        return f"the tree has a module {name}, where Python does not look; add --env PYTHONPATH={path}"
    if name in sys.stdlib_module_names:
        return (
            f"the Python of {host} has no {name}, a part of Python's own library; "
            "name another one with --python"
        )
    if plan.spec.image:
        return f"the image {harmless(plan.spec.image)} has no {name}; add its package there"
    if plan.spec.environment:
        return f"the packages of this launch have no {name}; add its package to the requirements"
    searched = (_folder_of_program(plan), PurePosixPath(plan.spec.tree.within), PurePosixPath("."))
    for listing in (folder / name for folder in searched for name in _REQUIREMENTS):
        if listing in sent:
            path = os.path.relpath(listing, plan.spec.tree.within)
            return (
                f"the hosts have no {name}; launch with --requirements {shlex.quote(path)} if that lists it"
            )
    return f"the hosts have no {name}; list its package in a file, and launch with --requirements FILE"


def _folder_of_program(plan: LaunchPlan) -> PurePosixPath:
    """The folder of its main file, relative to the top of the tree."""
    program = plan.spec.program
    name = program.script or f"{(program.module or '').replace('.', '/')}.py"
    return PurePosixPath(os.path.normpath(PurePosixPath(plan.spec.tree.within, name))).parent


def _ends_with(path: PurePosixPath, tail: PurePosixPath) -> bool:
    return path.parts[-len(tail.parts) :] == tail.parts


def _before(path: PurePosixPath, tail: PurePosixPath) -> PurePosixPath:
    """The folder from which Python would import a module whose path ends with `tail`."""
    return PurePosixPath(*path.parts[: -len(tail.parts)])


def left_behind(result: LaunchResult) -> str:
    """A hint about a missing file of a rank that exists here and was not sent; else empty."""
    name = _missing_file(result)
    return _explain(name, result.plan) if name else ""


def sent_elsewhere(result: LaunchResult) -> str:
    """A hint about a missing file that was sent, if the program would find it from another folder."""
    plan, name = result.plan, os.path.normpath(_missing_file(result) or "/")
    program, tree = plan.spec.program, plan.spec.tree
    if PurePosixPath(name).is_absolute() or name.startswith("..") or "\0" in name:
        return ""
    sent, beside = {file.path for file in tree.files}, _folder_of_program(plan)
    if os.path.normpath(PurePosixPath(tree.within, name)) in sent:
        return ""
    others = [path for path in sent if _ends_with(PurePosixPath(path), PurePosixPath(name))]
    path = str(beside / name) if str(beside / name) in sent else others[0] if len(others) == 1 else ""
    if not path:
        return ""
    full = harmless(os.path.relpath(path, tree.within))
    what = f"{full} was sent, but the ranks start in the folder of the launch"
    if not program.script:  # it must start above its package
        found = f"Path(__file__).parent / {name!r}"
        return f"{what}; the program can open {found}" if path == str(beside / name) else ""
    folder = PurePosixPath(tree.root, _before(PurePosixPath(path), PurePosixPath(name)))
    script = os.path.relpath(PurePosixPath(tree.root, tree.within, program.script), folder)
    start = os.path.relpath(folder, PurePosixPath(tree.root, tree.within))
    return f"{what}; cd {shlex.quote(start)}, then: launch {shlex.quote(script)}"


def _missing_file(result: LaunchResult) -> str:
    """The path in a rank's last message about a missing file; empty if there is none."""
    match = next((match for line in last_lines(result) if (match := _MISSING.search(line))), None)
    return _text(match[1]) if match else ""


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


_FULL = re.compile(r"No space left on device(?:[^'\n]*'(/[^'\n]+)')?")
_SHARED = re.compile(r"/dev/shm|</torch_|out of shared memory")  # noqa: S108  # a message of the rank
_BUS = re.compile(r"Bus error|SIGBUS")


def full_disk(result: LaunchResult) -> str:
    """A hint about a full disk or a full /dev/shm of the host of the failure; else empty."""
    if not (failure := result.failure) or not failure.host:
        return ""
    look = f"muster run --include {failure.host} -- df -h"
    for line in last_lines(result):
        if _BUS.search(line) or (_FULL.search(line) and _SHARED.search(line)):
            return _shared_memory(failure.host, look)
        if match := _FULL.search(line):
            disk = (
                f"the disk of {harmless(match[1])} on {failure.host}"
                if match[1]
                else f"a disk of {failure.host}"
            )
            return f"{disk} is full: {look}"
    return _shared_memory(failure.host, look) if _BUS.search(failure.reason) else ""


def _shared_memory(host: str, look: str) -> str:
    """A write to a mapped page that has no room ends in SIGBUS."""
    less = "data loaders with fewer workers use less, --shm-size of a container makes it larger"
    return f"most likely /dev/shm of {host} is full: {look} /dev/shm; {less}"
