"""Hints about a missing module or file of the program, from the tree that was sent, and about a full disk.

A disk may also be the memory that processes share as files.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ...core.errors import UsageError
from ...core.hosts.host_facts import Facts
from ...core.job.cause import last_traceback
from ...core.job.result import LaunchResult
from ...core.plan.git import git
from ...core.plan.launch_plan import Contribution, LaunchPlan
from ...core.plan.source_tree import Tree
from ...core.text.terminal import harmless
from ...core.text.text import size

_MISSING = re.compile(r"(?:FileNotFoundError|No such file or directory)\b.*?: (b?'.*'|b?\".*\")\s*$")
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '(\w[\w.]*)'\)?\s*$"
    r"|^\S*python[\d.]*: No module named (\w[\w.]*)\s*$"
)
_NO_NAME = re.compile(r"ImportError: cannot import name '(\w+)' from '(\w[\w.]*)' \(")
MOST_LINE = 2048  # of a line, from its end: the patterns are slow on longer ones
_REQUIREMENTS = ("requirements.txt", "uv.lock", "pyproject.toml")


def last_lines(result: LaunchResult) -> Iterator[str]:
    """The lines that a rank printed before its failure, the last one first."""
    return (line[-MOST_LINE:] for line in reversed(result.failure.tail if result.failure else ()))


def _of_error(result: LaunchResult) -> Iterator[str]:
    """Those of the error that ended it: a program may have shown an exception that it handled."""
    return (
        line[-MOST_LINE:] for line in reversed(last_traceback(result.failure.tail if result.failure else ()))
    )


def missing_module(result: LaunchResult, facts: Mapping[str, Facts], *, here: bool) -> str:
    """A hint about the module that a rank could not import: in the tree, or of a package; else empty.

    `here`: the tree's folder is on this machine.
    """
    for line in _of_error(result):
        if match := _NO_NAME.search(line):  # perhaps a module of that package
            return _module_here(f"{match[2]}.{match[1]}", result.plan) if here else ""
        if match := _NO_MODULE.search(line):
            name, host = match[1] or match[2], result.failure.host if result.failure else None
            left = _module_here(name, result.plan) if here else ""
            torch = facts[host].torch if host and host in facts else None
            if not left and name == "torch" and not torch and any(fact.torch for fact in facts.values()):
                return f"{host} has no torch, and other hosts have one; muster check names what fixes it"
            return left or _explain_module(name, host or "a host", result.plan, has_torch=bool(torch))
    return ""


_EXTENSION = re.compile(r"\.[\w.-]*so")
MOST_ENTRIES = 10_000


def _module_here(name: str, plan: LaunchPlan) -> str:
    """A hint about a module that is on this machine and was not sent; else empty."""
    tree = plan.spec.tree
    sent, top = {file.path for file in tree.files}, Path(tree.root)
    for folder in dict.fromkeys((_folder_of_program(plan), PurePosixPath(tree.within), PurePosixPath("."))):
        for found in _modules_in(top / folder, name):
            path = os.path.relpath(found, top)
            if path not in sent:
                fix = f"change the rule, or git add -f {shlex.quote(path)}"
                return f"{not_sent(tree, path)}; {fix}" if _rule(tree, path) else not_sent(tree, path)
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        full = Path(entry).resolve()
        if not full.is_relative_to(top.resolve()) and next(_modules_in(full, name), None):
            return (
                f"{name} is in {harmless(str(full))}, which only PYTHONPATH of this shell names; "
                "put it into the project, or make a package of it"
            )
    return ""


def _modules_in(folder: Path, name: str) -> Iterator[Path]:
    """The files of this folder that Python would import under this name."""
    parts = name.split(".")
    full = folder.joinpath(*parts)
    for path in (full.with_name(f"{parts[-1]}.py"), full / "__init__.py"):
        if _kind_of(path.parent, path.name) == "file":
            yield path
    with contextlib.suppress(OSError):
        for entry in islice(os.scandir(full.parent), MOST_ENTRIES):
            stem = entry.name.removeprefix(parts[-1])
            if stem != entry.name and _EXTENSION.fullmatch(stem) and entry.is_file():
                yield Path(entry.path)


def _explain_module(full: str, host: str, plan: LaunchPlan, *, has_torch: bool) -> str:
    sent = [PurePosixPath(file.path) for file in plan.spec.tree.files]
    base, name = PurePosixPath(*full.split(".")), full.partition(".")[0]
    wanted = (base.with_name(f"{base.name}.py"), base / "__init__.py")
    folders = [str(_before(path, tail)) for path in sent for tail in wanted if _ends_with(path, tail)]
    if folders:
        nearest = os.path.relpath(min(folders, key=len), plan.spec.tree.within)
        path = shlex.quote(nearest)
        return f"the tree has a module {full}, where Python does not look; add --env PYTHONPATH={path}"
    if full != name:  # else Python would name the first part
        return f"the {name} that Python found on {host} has no {full}; is it another version of it?"
    return _explain_package(name, host, plan, has_torch=has_torch)


def _explain_package(name: str, host: str, plan: LaunchPlan, *, has_torch: bool) -> str:
    if name in sys.stdlib_module_names:
        return (
            f"the Python of {host} has no {name}, a part of Python's own library; "
            "name another one with --python"
        )
    if advice := plan.added.get(host, Contribution()).if_module_is_missing:
        return advice.replace("{name}", name)
    sent = {PurePosixPath(file.path) for file in plan.spec.tree.files}
    searched = (_folder_of_program(plan), PurePosixPath(plan.spec.tree.within), PurePosixPath("."))
    for listing in (folder / name for folder in searched for name in _REQUIREMENTS):
        if listing in sent:
            path = os.path.relpath(listing, plan.spec.tree.within)
            return f"{host} has no {name}; launch with --requirements {shlex.quote(path)} if that lists it"
    keep = "; their own torch stays unless that needs another" if has_torch else ""
    return f"{host} has no {name}; list its package in a file, and launch with --requirements FILE{keep}"


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
    match = next((match for line in _of_error(result) if (match := _MISSING.search(line))), None)
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
            what = not_sent(plan.spec.tree, path, kind)
            if _rule(plan.spec.tree, path):
                return f"{what}; copy it with muster put, or change the rule"
            return f"{what}: a launch leaves out what git ignores, and empty folders; copy it with muster put"
    return ""


def not_sent(tree: Tree, path: str, kind: str = "file") -> str:
    """`the file a.py is here, but was not sent: git ignores it (.gitignore:4: log*)`."""
    rule = _rule(tree, path)
    why = f": git ignores it ({harmless(rule)})" if rule else ""
    return f"the {kind} {harmless(path)} is here, but was not sent{why}"


_RULE = re.compile(r"(.*:\d+):([^!\t][^\t]*)\t")


def _rule(tree: Tree, path: str) -> str:
    """The rule by which git ignores a path of the tree, as `.gitignore:4: log*`; empty if there is none."""
    if not (Path(tree.root) / ".git").exists():
        return ""
    try:
        said = os.fsdecode(git(tree.root, "check-ignore", "--verbose", "--", path))
    except UsageError:  # it is not ignored, or of a submodule
        return ""
    match = _RULE.match(said)
    return f"{match[1]}: {match[2]}" if match else ""


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


SHM = "/dev/shm"  # noqa: S108  # a name to read
NEARLY_FULL = 0.8
"""Of /dev/shm in a sample: it may have been full for less time than there is between two samples."""


class SharedMemory(NamedTuple):
    """The bytes of /dev/shm on a host, and the most of them that a sample of the job found in use."""

    used: int
    total: int


def full_disk(result: LaunchResult, shared: Mapping[str, SharedMemory]) -> str:
    """A hint about a full disk or a full /dev/shm of the host of the failure; else empty.

    `shared`: for each host, as its samples found it.
    """
    if not (failure := result.failure) or not failure.host:
        return ""
    look = f"muster run --include {failure.host} -- df -h"
    for line in last_lines(result):
        if _BUS.search(line):
            return _bus_error(failure.host, look, shared.get(failure.host))
        if (match := _FULL.search(line)) and _SHARED.search(line):
            return f"{SHM} of {failure.host} is full: {look} {SHM}; {_LESS}"
        if match:
            disk = (
                f"the disk of {harmless(match[1])} on {failure.host}"
                if match[1]
                else f"a disk of {failure.host}"
            )
            return f"{disk} is full: {look}"
    is_bus_error = bool(_BUS.search(failure.reason))
    return _bus_error(failure.host, look, shared.get(failure.host)) if is_bus_error else ""


_LESS = "data loaders with fewer workers use less, --shm-size of a container makes it larger"


def _bus_error(host: str, look: str, shared: SharedMemory | None) -> str:
    """The kernel cannot supply a page of a mapped file: its file system is full, or it has become shorter."""
    if shared and shared.used >= NEARLY_FULL * shared.total:
        found = f"{size(shared.used)} of {size(shared.total)} were in use"
        return f"most likely {SHM} of {host} was full: {found}; {_LESS}"
    found = (
        f", of which at most {size(shared.used)} of {size(shared.total)} were seen in use," if shared else ""
    )
    return (
        f"a bus error: a file that the program has mapped became shorter, or its file system had no room: "
        f"{SHM} of {host}{found} or a disk: {look}"
    )
