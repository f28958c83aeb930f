"""Waits, with the imports of the ranks done, until the next attempt of the job needs them (`--preload`).

The agent starts one such process on its host, by the command line and with the environment of a rank
(features/preload/on_host/preload.py). `sitecustomize.py` calls `begin` before Python runs the program, and so
nothing of the program has run. For each rank of the next attempt a fork returns from there: Python then
begins the program with its own `__main__`, arguments and flags.

Between this process and the rank is the wrapper (`rank.py`), as it is without `--preload`: a first fork makes
the pipes, forks the rank, and becomes the wrapper by exec.

The imports run in a thread, because only a thread can have a low priority that the ranks do not inherit.
Forks are safe only if they leave no thread behind: this process is not used if a module starts one, opens a
file, or initialises MPI or a GPU. OpenBLAS, which NumPy loads, starts threads at its import: it starts none
here, and those of a rank after the fork. Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61  # prctl(2)
LOWEST = 19  # nice(2)
MOST_REQUEST = 1 << 20
JOIN_SECONDS = 1.0
CONTROL = "MUSTER_PRELOAD_FD"
"""The variable with the descriptor of the connection to the agent."""
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
BLAS_LIMITS = (BLAS_THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""OpenBLAS takes the first of them that is set, and at most a thread for each core."""
INITIALISED = ("mpi4py.MPI",)
"""Modules that initialise a library at their import; the program does it itself."""
_HERE = os.path.dirname(os.path.abspath(__file__))
_STDLIB = os.path.dirname(os.__file__)


class Unfit(Exception):  # a reason, not an error
    """Why this process cannot stand in for new ranks."""


def begin() -> None:
    """Import the modules, and wait; returns in a rank only."""
    control = socket.socket(fileno=int(os.environ.pop(CONTROL)))
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            score = file.read()
            file.write("1000")  # the OOM killer takes this process first: the job runs without it
        before = dict(os.environ)
        os.environ[BLAS_THREADS] = "1"
        modules = _prepare(json.loads(control.recv(MOST_REQUEST)))
        openblas = _openblas()
        _tell(control, {"modules": modules, "why": ""})
    except Exception as error:  # noqa: BLE001  # whatever it is, the ranks start without this process
        _tell(control, {"modules": 0, "why": str(error) if isinstance(error, Unfit) else repr(error)})
        os._exit(1)
    changes = {name: value for name, value in os.environ.items() if before.get(name) != value}
    if changes.get(BLAS_THREADS) == "1":
        del changes[BLAS_THREADS]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the wrappers
    while True:
        line, descriptors, _, _ = socket.recv_fds(control, MOST_REQUEST, 1)
        if not line:
            os._exit(0)
        if not os.fork():
            break
        for descriptor in descriptors:
            os.close(descriptor)
    # In the first fork, which returns from here in the second one.
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(score)
        request = json.loads(line)
        _release(request, descriptors[0])
        _become_rank(request, changes)
        _start_blas_threads(openblas)
    except BaseException as error:  # noqa: BLE001  # it must not run the program
        with open(2, "w", closefd=False) as output:  # the agent reads it
            output.write(f"{error!r}\n")
        os._exit(1)


def _tell(control: socket.socket, frame: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(frame).encode())


# -- before a rank is needed --


def _prepare(request: dict[str, Any]) -> int:
    """Import what a rank has imported; returns the number of modules. `Unfit` if forks are not safe then."""
    with open(request["modules"], encoding="utf-8") as file:
        origins: dict[str, str] = json.load(file)
    _refuse_customizations()
    for name in os.environ["MUSTER_START"].split():
        import_module(name)  # the recorder wraps torch's functions when torch is imported
    opened, errors = _descriptors(), list[str]()
    # Python has not ended the import of `site`, so another thread would wait for it.
    for name in ("site", "sitecustomize"):
        setattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)  # noqa: B010
    names = [name for name in request["names"] if name not in INITIALISED]
    starters = list[str]()
    thread = threading.Thread(target=_import, args=(names, errors, starters))
    thread.start()
    thread.join()
    if errors:
        raise Unfit(errors[0])
    cuda = sys.modules.get("torch.cuda")
    if cuda and cuda.is_initialized():
        raise Unfit("its imports have initialised a GPU")
    if more := _descriptors() - opened:
        raise Unfit(f"its imports have opened {os.readlink(f'/proc/self/fd/{min(more)}')}")
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        raise Unfit("its imports have started a process")
    _require_one_thread(starters)
    for name, module in list(sys.modules.items()):
        other = origins.get(name, origin := _origin(module))
        if other != origin and name not in {"__main__", "sitecustomize"}:  # the system's runs after Muster's
            raise Unfit(f"the ranks import {name} from {other}")
    return len(sys.modules)


def _refuse_customizations() -> None:
    """`Unfit` if the user has a module that Python imports before all others: it must run in each rank."""
    path = [folder for folder in sys.path if folder != _HERE]
    for name in ("sitecustomize", "usercustomize"):
        spec = PathFinder.find_spec(name, path)
        if spec and os.path.dirname(spec.origin or "") != _STDLIB:
            raise Unfit(f"the ranks have a {name}.py: {spec.origin}")


def _import(names: list[str], errors: list[str], starters: list[str]) -> None:
    """Import the modules; `starters` gets those after which more threads run than at the start."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
    for name in names:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001  # also SystemExit
            errors.append(f"import {name}: {error!r}"[:500])
            return
        if _threads() <= 2:  # those may have ended
            starters.clear()
        elif not starters:
            starters.append(name)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _require_one_thread(starters: list[str]) -> None:
    deadline = time.monotonic() + JOIN_SECONDS
    while _threads() > 1:
        if time.monotonic() > deadline:
            raise Unfit(f"the import of {starters[0] if starters else 'a module'} has started a thread")
        time.sleep(0.01)


def _openblas() -> list[tuple[Any, str]]:
    """Each OpenBLAS of this process, and its function that sets the number of threads.

    NumPy, SciPy and torch may have one each, whose functions have names of their own.
    """
    with open("/proc/self/maps", "rb") as maps:
        paths = {os.fsdecode(line.rstrip(b"\n").partition(b" /")[2]) for line in maps if b"blas" in line}
    libraries = [ctypes.CDLL(f"/{path}") for path in paths if "blas" in os.path.basename(path)]
    parts = ((before, after) for before in ("", "scipy_") for after in ("", "64_", "_64"))
    names = [f"{before}openblas_set_num_threads{after}" for before, after in parts]
    return [(library, name) for library in libraries for name in names if hasattr(library, name)]


def _descriptors() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {descriptor for descriptor in found if os.path.lexists(f"/proc/self/fd/{descriptor}")}


def _origin(module: Any) -> str:
    return str(getattr(getattr(module, "__spec__", None), "origin", None) or "")


# -- when a rank is needed --


def _release(request: dict[str, Any], asking: int) -> None:
    """In the first fork: fork the rank, in which this returns, and become its wrapper.

    `asking`: the connection to the process that the launcher has started for this rank.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # as a launcher starts it
    os.setsid()
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cores"])
    connection = socket.socket(fileno=asking)
    connection.sendall(json.dumps({"wrapper": os.getpid()}).encode() + b"\n")
    if not connection.recv(1):
        os._exit(1)  # it has ended, or did not wait for so long
    out, err = os.pipe(), os.pipe()
    wrapper = os.getpid()
    rank = os.fork()
    if not rank:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != wrapper:
            os._exit(1)
        libc.prctl(PR_SET_PTRACER, request["agent"], 0, 0, 0)
        os.dup2(out[1], 1)
        os.dup2(err[1], 2)
        connection.detach()
        return
    kept = (connection.fileno(), out[0], err[0])
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    released = " ".join(map(str, (rank, *kept)))
    program = os.path.join(os.path.dirname(_HERE), "rank.py")
    argv = [sys.executable, "-IS", program, *request["argv"]]
    os.execve(sys.executable, argv, {**request["outer"], "MUSTER_RELEASED": released})  # noqa: S606


def _become_rank(request: dict[str, Any], changes: dict[str, str]) -> None:
    """In the second fork: what differs from the process that has done the imports.

    `changes`: the variables that the imports have set.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, max(_descriptors()) + 1)
    os.chdir(request["cwd"])
    environment: dict[str, str] = request["env"]
    for name in [*os.environ]:
        if name not in environment:
            del os.environ[name]
    os.environ.update({**changes, **environment})
    if "numpy.random" in sys.modules:  # Python's own random numbers are seeded again after a fork
        sys.modules["numpy.random"].seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # TMPDIR is another one now
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)


def _start_blas_threads(openblas: list[tuple[Any, str]]) -> None:
    """Give each OpenBLAS the threads that it starts when it is loaded in a rank."""
    cores = len(os.sched_getaffinity(0))
    limits = (os.environ.get(name, "").partition(",")[0] for name in BLAS_LIMITS)
    threads = next((int(limit) for limit in limits if limit.isdecimal() and int(limit)), cores)
    for library, name in openblas:
        of_openmp = library.omp_get_max_threads() if hasattr(library, "omp_get_max_threads") else 0
        library[name](min(cores, threads))
        if of_openmp:  # an OpenBLAS that uses OpenMP sets the number for all of OpenMP
            library.omp_set_num_threads(of_openmp)
