"""Python imports this at the start of every rank (PYTHONPATH, `rank.py`). It acts at the rank's end.

It imports muster_program_end.py, and the modules that features add (START), while this folder is on the path.

Three kinds of failure look like success, or like no end, from outside:

* A rank under torchrun is not a rank to MPI: each has a world of size 1. N models are trained, and all end
  with 0. Such a rank leaves a file, by which `rank.py` reports a failure.
* A rank that fails waits in MPI_Finalize for the others, which wait for it. `python -m mpi4py` makes that an
  MPI_Abort for programs that import mpi4py. For those that do not, as with torch's own MPI backend, the rank
  ends here without MPI_Finalize.
* A rank that dies of an exception may not end, because one of its threads lives (muster_program_end.py).

If Open MPI's library is loaded, it is asked through ctypes. Standard library only, Python 3.9. What acts at
the end is loaded at the start: the disk may not answer by then, or have another Python.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import TracebackType
from typing import Any

START = "MUSTER_START"
"""The variable with the names of modules beside this one, in each of which `begin` is called."""
ALONE = "world-of-one"  # the file of rank 3: world-of-one-3 (core/agent/rank.py)
RUNNERS = ("<frozen runpy>", "/runpy.py", "/mpi4py/__main__.py", "/mpi4py/run.py")
STARTED_BY_MPI = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}  # variables of MPI launchers


class _End:
    """Judges the rank when its program and all its exit functions have ended."""

    def __init__(self, environment: dict[str, str], over: Any) -> None:
        # Read now: the program may change the environment, and MPI does.
        self._over = over
        world = environment.get("WORLD_SIZE", "")
        self._world = int(world) if world.isdecimal() else 1
        self._marker = f"{environment.get('MUSTER_AGENT')}/{ALONE}-{environment.get('RANK')}"
        self._in_mpi_job = not STARTED_BY_MPI.isdisjoint(environment)
        self._status = 0

    def note_status(self, status: Any) -> None:
        """The status, or SystemExit, that the program ends with."""
        status = getattr(status, "code", status)
        self._status = (status & 0xFF) if isinstance(status, int) else int(status is not None)

    def judge(self) -> None:
        """Python calls this last at exit, because it is registered first."""
        status = self._over.judge(self._status)
        if (library := _loaded_mpi()) is None or not _flag(library, "MPI_Initialized"):
            return
        finalized = _flag(library, "MPI_Finalized")
        if status and not finalized and "mpi4py.MPI" not in sys.modules:
            self._over.flush()
            os._exit(status)
        if self._world > 1 and not _met_by_torch() and self._is_alone(library, finalized=finalized):
            with contextlib.suppress(OSError), open(self._marker, "xb"):
                pass

    def _is_alone(self, library: Any, *, finalized: bool) -> bool:
        """Whether MPI_COMM_WORLD has one rank; after MPI_Finalize, MPI can no longer be asked."""
        if finalized:
            return not self._in_mpi_job
        import ctypes

        size = ctypes.c_int()
        world = ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")
        library.MPI_Comm_size(ctypes.byref(world), ctypes.byref(size))
        return size.value == 1


def _loaded_mpi() -> Any:
    """Open MPI's library, if this process has loaded it."""
    with contextlib.suppress(OSError), open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").partition(b"/")[2]
            if os.path.basename(path).startswith(b"libmpi.so"):
                with contextlib.suppress(OSError, ImportError):  # Python may have been replaced by now
                    import ctypes

                    library = ctypes.CDLL(os.fsdecode(b"/" + path))
                    return library if hasattr(library, "ompi_mpi_comm_world") else None
    return None


def _flag(library: Any, function: str) -> bool:
    import ctypes

    flag = ctypes.c_int()
    getattr(library, function)(ctypes.byref(flag))
    return bool(flag.value)


def _met_by_torch() -> bool:
    """Whether torch has brought the ranks together without MPI, which was initialised for something else.

    A destroyed group has left no size. It was MPI's if torch has an MPI backend and mpi4py is not loaded.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or c10d._default_pg_init_method is None:
        return False
    if c10d.is_initialized():
        return bool(c10d.get_world_size() > 1)
    return "mpi4py.MPI" in sys.modules or not c10d.is_mpi_available()


def _exit(status: Any = None, /, end: Any = sys.exit) -> None:
    """`sys.exit`. The kernel would cut 256, which os.system gives for a command with status 1, to 0."""
    end(status >> 8 & 0xFF or 1 if isinstance(status, int) and status and not status & 0xFF else status)


def _watch_mpi4py(end: _End) -> None:
    """Under `python -m mpi4py`, note the status of a program that ends by SystemExit, as mpi4py does."""
    with open("/proc/self/cmdline", "rb") as file:
        if file.read().split(b"\0")[1:3] != [b"-m", b"mpi4py"]:
            return
    run = import_module("mpi4py.run")
    original = run.set_abort_status

    def set_abort_status(status: Any) -> None:
        end.note_status(status)
        original(status)

    run.set_abort_status = set_abort_status  # type: ignore[attr-defined]
    sys.excepthook = _show_the_program


def _show_the_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception without the seven frames of `python -m mpi4py`, which explain nothing."""
    while trace and trace.tb_frame.f_code.co_filename.endswith(RUNNERS):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


class _WithoutLibuv:
    """Lets a rank whose torch has no libuv meet the others at torchrun's store.

    torch opens that store with libuv, and looks at USE_LIBUV for other stores alone.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Change one module after its import; find no others."""
        if name != "torch.distributed.rendezvous":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            load = spec.loader.exec_module

            def load_and_change(module: Any) -> None:
                load(module)
                store = module.TCPStore
                module.TCPStore = lambda *args, **kwargs: store(*args, **{"use_libuv": False, **kwargs})

            spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def _leave_the_path(folder: str) -> None:
    """Remove this folder from the path: a child of the program is not a rank and must not import it."""
    sys.path[:] = [path for path in sys.path if path != folder]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != folder)
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]


def _run_next() -> None:
    """Run the `sitecustomize` of the user or the system, which this file hides."""
    spec: ModuleSpec | None = PathFinder.find_spec("sitecustomize")
    if spec and spec.loader:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("USE_LIBUV") == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        sys.meta_path.insert(0, _WithoutLibuv())
    for module_name in os.environ.get(START, "").split():
        with contextlib.suppress(Exception):  # what a feature adds must not cost the rank
            import_module(module_name).begin()
    os.environ.pop(START, None)
    the_over = import_module("muster_program_end").ProgramEnd(dict(os.environ))
    _leave_the_path(os.path.dirname(os.path.abspath(__file__)))
    the_end = _End(dict(os.environ), the_over)
    atexit.register(the_end.judge)
    sys.exit = _exit  # type: ignore[assignment]
    with contextlib.suppress(Exception):  # the program reports an error of mpi4py itself
        _watch_mpi4py(the_end)
    _run_next()
