"""The program of a launch."""

from __future__ import annotations

from dataclasses import dataclass

_REPLACE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program of every rank: a module or a script of the tree, and its arguments."""

    module: str | None = None
    script: str | None = None
    args: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    """The interpreter of a script that is no Python program, such as `bash`; empty for Python."""
    python: str = ""
    """`3.11`: the version of Python that alone can run it, for code of a function; empty for any."""

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
