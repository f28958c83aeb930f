"""Reads the main file of a program: whether it uses MPI, and whether it starts its own ranks.

A launch warns about both. A file that is no Python, or is not in the tree, shows neither.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from .program import Program
from .source_tree import Tree

STARTS = frozenset({"spawn", "start_processes", "Process"})
"""The calls of multiprocessing, and of torch.multiprocessing, that start processes."""
JOINS = frozenset({"init_process_group", "init_rpc"})
"""The calls of torch.distributed that make a process a rank."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = Mapping[str, list[Function]]


def with_uses(program: Program, tree: Tree) -> Program:
    """The program with the lines of its main file that use MPI, and that start its own ranks."""
    for name in _files(program):
        try:
            source = ast.parse(Path(tree.root, tree.within, name).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError):  # the program reports its errors
            continue
        mpi = line_of_mpi(source)
        own_ranks = line_of_own_ranks(source)
        return replace(
            program,
            mpi=f"{name}:{mpi}" if mpi else "",
            mpi_backend=any(map(_asks_torch_for_mpi, ast.walk(source))),
            own_ranks=f"{name}:{own_ranks}" if own_ranks else "",
        )
    return program


def _files(program: Program) -> tuple[str, ...]:
    if program.runner:
        return ()
    if program.script:
        return (program.script, f"{program.script}/__main__.py")
    path = (program.module or "").replace(".", "/")
    return (f"{path}.py", f"{path}/__main__.py")


def line_of_mpi(source: ast.Module) -> int | None:
    """The line that imports mpi4py, or starts torch's process group with MPI; None if there is none."""
    nodes = (node for node in ast.walk(source) if isinstance(node, ast.stmt | ast.expr))
    return min((node.lineno for node in nodes if _uses_mpi(node)), default=None)


def _uses_mpi(node: ast.AST) -> bool:
    """Whether a node imports mpi4py, or asks torch for its backend."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "mpi4py" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").split(".")[0] == "mpi4py"
    return _asks_torch_for_mpi(node)


def _asks_torch_for_mpi(node: ast.AST) -> bool:
    """Whether a node is the call `init_process_group("mpi")`."""
    if not isinstance(node, ast.Call) or _callee(node) != "init_process_group":
        return False
    backends = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "backend")]
    return any(isinstance(backend, ast.Constant) and backend.value == "mpi" for backend in backends)


def line_of_own_ranks(source: ast.Module) -> int | None:
    """The line that starts processes which become ranks; None if the program itself may become one.

    Calls are followed by name, so a line is reported only if the program joins the others nowhere but in
    functions that it passes on, as in `mp.spawn(worker)`.
    """
    functions = _functions(source)
    calls = _reached(source.body, functions)
    if any(_callee(call) in JOINS for call in calls):
        return None
    starts = [call.lineno for call in calls if _callee(call) in STARTS]
    passed_on = (name for call in calls for name in _names_passed(call))
    targets = (function for name in passed_on for function in functions.get(name, ()))
    joins = any(_callee(call) in JOINS for target in targets for call in _reached(target.body, functions))
    return min(starts, default=None) if joins else None


def _functions(source: ast.Module) -> Functions:
    """The functions of a file by their names, those within others too; that of a class is its `__init__`."""
    functions: dict[str, list[Function]] = {}
    for node in ast.walk(source):
        if isinstance(node, Function):
            functions.setdefault(node.name, []).append(node)
        if isinstance(node, ast.ClassDef):
            made = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
            functions.setdefault(node.name, []).extend(made)
    return functions


def _reached(body: Iterable[ast.AST], functions: Functions) -> list[ast.Call]:
    """The calls in these statements, and in the functions that they call."""
    todo, seen, calls = [*body], set[str](), list[ast.Call]()
    while todo:
        for call in _calls(todo.pop()):
            calls.append(call)
            name = _callee(call)
            if name not in seen:
                seen.add(name)
                todo += [node for function in functions.get(name, ()) for node in function.body]
    return calls


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that happen when a statement runs: not those within a function that it defines."""
    if isinstance(node, Function):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _callee(call: ast.Call) -> str:
    """`spawn` of `torch.multiprocessing.spawn(worker)`."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _names_passed(call: ast.Call) -> Iterator[str]:
    """The names among the arguments of a call: `worker` of `spawn(worker)`, `Process(target=worker)`."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
