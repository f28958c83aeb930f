"""The program of a launch, and whether it uses MPI, from the source of its main file."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from .source_tree import Tree

_REPLACE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program of every rank: a module or a script of the tree, and its arguments."""

    module: str | None = None
    script: str | None = None
    args: tuple[str, ...] = ()
    mpi: str = ""
    """The line of its source that uses MPI: `train.py:3`; else empty."""
    runner: tuple[str, ...] = ()
    """The interpreter of a script that is no Python program, such as `bash`; empty for Python."""

    def argv(self, *, abort_with_mpi: bool) -> tuple[str, ...]:
        """The arguments for Python.

        With MPI, an uncaught exception in one rank leaves the others waiting in MPI_Finalize forever;
        `python -m mpi4py` makes it an MPI_Abort (mpi4py manual, "mpi4py.run").
        """
        if self.runner:  # it replaces Python, with the same process id
            return ("-c", _REPLACE, *self.runner, self.script or "", *self.args)
        runner = ("-m", "mpi4py") if abort_with_mpi else ()
        target = ("-m", self.module) if self.module else (self.script or "",)
        return (*runner, *target, *self.args)


def mpi_use(program: Program, tree: Tree) -> str:
    """`train.py:3`, the first line of the program's own file that uses MPI; else empty."""
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
    except (SyntaxError, RecursionError):  # the program reports that error
        return None
    lines = (node.lineno for node in nodes if isinstance(node, ast.stmt | ast.expr) and _uses_mpi(node))
    return min(lines, default=None)


def _uses_mpi(node: ast.AST) -> bool:
    """Whether a node imports mpi4py, or is the call `init_process_group("mpi")`."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "mpi4py" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "mpi4py"
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    backends = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "backend")]
    return name == "init_process_group" and any(
        isinstance(backend, ast.Constant) and backend.value == "mpi" for backend in backends
    )
