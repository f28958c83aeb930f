"""Finds out whether a program asks for MPI, from the source of its main file."""

from __future__ import annotations

import ast
from pathlib import Path

from .source_tree import Tree
from .spec import Program


def asks_for_mpi(program: Program, tree: Tree) -> str:
    """`train.py:3`, the first place where the program's own file asks for MPI; empty if it does not."""
    for name in _files(program):
        path = Path(tree.root, tree.within, name)
        try:
            line = line_of_mpi(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not in the tree, or not a text file
            continue
        return f"{name}:{line}" if line else ""
    return ""


def _files(program: Program) -> tuple[str, ...]:
    if program.runner:
        return ()
    if program.script:
        return (program.script, f"{program.script}/__main__.py")
    path = (program.module or "").replace(".", "/")
    return (f"{path}.py", f"{path}/__main__.py")


def line_of_mpi(source: str) -> int | None:
    """The line that imports mpi4py, or starts torch's process group with MPI; None if there is none."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, RecursionError):  # the user will see that error when the program runs
        return None
    lines = (node.lineno for node in nodes if isinstance(node, ast.stmt | ast.expr) and _asks(node))
    return min(lines, default=None)


def _asks(node: ast.AST) -> bool:
    """Whether a node imports mpi4py, or is the call `init_process_group("mpi")`."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "mpi4py" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "mpi4py"
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    backends = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "backend")]
    return name == "init_process_group" and any(
        isinstance(backend, ast.Constant) and backend.value == "mpi" for backend in backends
    )
