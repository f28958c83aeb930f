"""No rank unpickles what another rank, or another program, wrote: that would run its code (SECURITY.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "torch.distributed.rpc"}
# torch.distributed's, all of which pickle; mpi4py's own, whose names in capitals move bytes.
OBJECTS = ("_object", "_object_list", "objects_from_bytes")
OF_MPI = {
    *("bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce", "scan", "exscan"),
    *("send", "recv", "isend", "irecv", "bsend", "ssend", "issend", "sendrecv", "mprobe", "improbe"),
}
# Both read and write pickles; torch.distributed.checkpoint sends them to the other ranks as well.
CHECKPOINTS = {"save", "load", "async_save", "save_state_dict", "load_state_dict"}
ALLOWED = {
    ("train/checkpoint/files.py", "pickle"): "for the name of the error that torch.load raises",
    ("train/checkpoint/shards.py", "pickle"): "the same",
    ("train/mpi_backend/library.py", "py_object"): "a reference of ctypes, which moves nothing",
    ("examples/parameter_server.py", "torch.distributed.rpc"): "shows torch's RPC, made of such calls",
}


def found(path: Path) -> Iterator[tuple[str, int]]:
    """What a file has of the names above, each with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from ((name, getattr(node, "lineno", 0)) for name in names if name in MODULES)
        if isinstance(node, (ast.Attribute, ast.Name)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name.endswith(OBJECTS) or (name in {"eval", "exec"} and isinstance(node, ast.Name)):
                yield name, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _calls(node, ast.unparse(node.func.value), node.func.attr)


def _calls(node: ast.Call, on: str, name: str) -> Iterator[tuple[str, int]]:
    if name in OF_MPI and ("comm" in on.lower() or "MPI" in on):
        yield f"{on}.{name}", node.lineno
    if name in CHECKPOINTS and on in {"dcp", "checkpoint", "torch.distributed.checkpoint"}:
        yield f"{on}.{name}", node.lineno
    safe = [word.value for word in node.keywords if word.arg == "weights_only"]
    if (on, name) == ("torch", "load") and not (safe and ast.unparse(safe[0]) == "True"):
        yield "torch.load", node.lineno


FILES = [path for folder in ("train", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_nothing_unpickles() -> None:
    here = {path: str(path.relative_to(ROOT)) for path in FILES}
    uses = [(here[path], what, line) for path in FILES for what, line in found(path)]
    assert [use for use in uses if use[:2] not in ALLOWED] == []


def test_every_exception_is_still_needed() -> None:
    there = {(str(path.relative_to(ROOT)), what) for path in FILES for what, _ in found(path)}
    assert there == {*ALLOWED}


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from torch.distributed import rpc", "dist.all_gather_object(a, b)", "eval(text)"),
        *(
            "from torch.distributed import broadcast_object_list as send\nbroadcast_object_list",
            "comm.bcast(1)",
        ),
        *("self._comm.allgather(1)", "MPI.COMM_WORLD.recv()", "torch.load(path)", "dcp.load(state)"),
        "torch.load(path, weights_only=False)",
    ],
)
def test_each_of_these_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "program.py").write_text(line)
    assert [*found(tmp_path / "program.py")]
