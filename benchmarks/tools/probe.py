"""Measure which operations work with which types, on which devices, under which backends.

    torchrun --nproc-per-node 2 -m benchmarks.tools.probe    # gloo, and nccl where there are GPUs
    mpirun -np 2 python -m benchmarks.tools.probe --backend mpi --json
    fab launch --hosts hosts.txt --module benchmarks.tools.probe

Every cell of the table is an operation that ran here, on these hosts, and whose result was checked.

    probe_cells.py         the cells of the table
    probe_children.py      measures them in child processes, which may hang or die
    probe_in_process.py    measures them in this process, where MPI allows no other
    probe_table.py         prints the table
"""

from __future__ import annotations

import sys

import torch

from muster.deploy.features.bench.programs.tool import ToolConfig, run
from muster.train.job.group import Job

from .probe_cells import all_cells
from .probe_children import measure_apart
from .probe_in_process import measure_inside
from .probe_table import Tables, as_json, as_text


def main() -> None:
    """Run the tool."""
    run("python -m benchmarks.tools.probe", ToolConfig, show)


def show(group: Job, config: ToolConfig) -> int:
    """Measure everything, and show it on rank 0."""
    tables: Tables = {}
    for backend, devices in to_measure(group, config.backend).items():
        cells = all_cells(devices)
        inside = backend == "mpi"
        tables[backend] = measure_inside(group, cells) if inside else measure_apart(group, backend, cells)
    if group.rank == 0:
        sys.stdout.write(as_json(group, tables) if config.json else as_text(group, tables))
        sys.stdout.flush()
    return 0


def to_measure(group: Job, asked: str) -> dict[str, list[str]]:
    """Return the backends to measure, each with its devices: the one `asked` for, or all that work here."""
    has_gpu = all(group.all_gather(torch.cuda.is_available(), bool))
    gpu = ["cuda"] if has_gpu else []
    known = {"gloo": ["cpu", *gpu], "nccl": gpu, "mpi": ["cpu"]}
    if asked in known:
        return {asked: known[asked]}
    return {backend: known[backend] for backend in ("gloo", "nccl") if known[backend]}


if __name__ == "__main__":
    main()
