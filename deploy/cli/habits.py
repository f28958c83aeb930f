"""Options of other launchers: accepted as another spelling, or answered with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

SPELLINGS: Mapping[str, str] = {
    "-m": "--module",
    "-n": "--np",
    "-np": "--np",
    "-x": "--env",
    "-N": "--per-host",
    "--ppn": "--per-host",
    "--npernode": "--per-host",
    "--nproc-per-node": "--per-host",
    "-hostfile": "--hosts",
    "--machinefile": "--hosts",
    "-machinefile": "--hosts",
}
"""Spellings of mpirun, torchrun and python that `launch` accepts."""

_MEETING = "ranks meet by themselves; --network chooses the network"
_PLACES = "ranks follow the order of the hosts file; slots= is the number of ranks on a host"
_OPEN_MPI = "Muster chooses mpirun's options; a parameter of Open MPI: --env OMPI_MCA_name=value"
HINTS: Mapping[str, str] = {
    **dict.fromkeys(("--host", "-host"), "some hosts of the hosts file: --include node1,node2"),
    **dict.fromkeys(("--nnodes", "--num-nodes"), f"{_PLACES}; --include takes only some of them"),
    **dict.fromkeys(("--node-rank", "--map-by", "--rankfile", "--oversubscribe"), _PLACES),
    **dict.fromkeys(
        ("--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"), _MEETING
    ),
    **dict.fromkeys(("--mca", "-mca", "--prtemca", "--bind-to"), _OPEN_MPI),
    "--standalone": "a hosts file with the line: localhost slots=2",
}
"""The answers of `launch` to options that have no counterpart here."""
