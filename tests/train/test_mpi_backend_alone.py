"""The MPI backend is a package on its own: it needs torch and mpi4py, and nothing else of ours."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "train" / "mpi_backend"
ALLOWED = {*sys.stdlib_module_names, "torch", "mpi4py"}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_it_imports_the_standard_library_torch_mpi4py_and_itself(path: Path) -> None:
    depth = len(path.relative_to(FOLDER).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            inside = 0 < node.level <= depth
            assert inside or (node.level == 0 and (node.module or "").split(".")[0] in ALLOWED), node.module


def test_it_works_under_another_name_in_another_place(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "elsewhere")
    program = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
import elsewhere
store = dist.HashStore()
dist.init_process_group(elsewhere.register(), store=store, rank=0, world_size=1, timeout=timedelta(minutes=1))
tensor = torch.ones(3)
dist.all_reduce(tensor)
dist.destroy_process_group()
sys.exit(not torch.equal(tensor, torch.ones(3)))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
