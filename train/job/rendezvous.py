"""The rendezvous: how the ranks find each other, at a key-value store that all of them reach.

    env://              on rank 0, at MASTER_ADDR and MASTER_PORT; torchrun sets these two
    tcp://HOST:PORT     on rank 0, which must run on HOST
    file:///SHARED/F    in a file on a disk that all hosts share; a new file for every run, removed afterwards
    mpi://              on rank 0, at a free port, which the others learn over MPI
    auto                env:// where those two are set, else by what started the ranks: MPI, or Slurm

Debian builds torch without libuv, which torch's stores use by default. The older server is as good below a
few thousand ranks, so every store here uses it.
"""

from __future__ import annotations

import ipaddress
import itertools
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from torch.distributed import (
    DistNetworkError,
    DistStoreError,
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
    rendezvous,
)

from . import slurm
from .failure import TrainError
from .ranks import Ranks

FORMS = "auto, env://, tcp://HOST:PORT, file:///SHARED/PATH or mpi://"
LISTEN_BACKLOG = 2048  # all ranks connect at once; the kernel cuts it to net.core.somaxconn
# torchrun's store outlives a process group: a second group must not find the entries of the first.
_JOINED = itertools.count()
Opener = Callable[[str, Ranks, timedelta, Mapping[str, str]], Store]


@contextmanager
def rendezvous_store(
    init: str, ranks: Ranks, timeout: timedelta, environ: Mapping[str, str]
) -> Iterator[Store]:
    """Open the store of this job for the block; `init` is one of FORMS.

    Raises TrainError if `init` is none of them, lacks something, or cannot be reached within `timeout`.
    """
    init = init if init != "auto" else _choose(ranks, environ)
    opener = _OPENERS.get(init.partition("://")[0])
    if opener is None:
        raise TrainError(f"--init must be {FORMS}, got {init}")
    try:
        store = HashStore() if ranks.world_size == 1 else opener(init, ranks, timeout, environ)
    except (DistNetworkError, DistStoreError) as error:
        raise TrainError(f"{ranks}: cannot join the other ranks at {init}: {error}") from error
    try:
        yield PrefixStore(f"rendezvous-{next(_JOINED)}", store)
    finally:
        if isinstance(store, _SharedFile):
            store.leave(remove=ranks.rank == 0)


def _choose(ranks: Ranks, environ: Mapping[str, str]) -> str:
    given = [name for name in ("MASTER_ADDR", "MASTER_PORT") if environ.get(name)]
    if ranks.world_size == 1 or len(given) == 2:
        return "env://"
    if not given and ranks.from_mpi:
        return "mpi://"
    if not given and ranks.launcher == "srun":
        host, port = slurm.rendezvous_address(environ)
        return f"tcp://{host}:{port}"
    raise TrainError(
        "set both MASTER_ADDR, the address of rank 0, and MASTER_PORT, a free port there, or use --init"
    )


def _at_master(init: str, ranks: Ranks, timeout: timedelta, environ: Mapping[str, str]) -> Store:
    """Open the store at MASTER_ADDR; torch knows if torchrun's agent holds it, and which attempt this is."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise TrainError(f"--init env:// needs {name} in the environment")
    host, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise TrainError(f"MASTER_PORT must be from 1 to 65535, got {port}")
    if ranks.rank > 0:
        _wait_for_listener(host, int(port), ranks, timeout)
    serves = ranks.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if serves and (listener := _listen_at(host, int(port))) is not None:
        return _serve(host, int(port), timeout, listener)
    store: Store
    store, _, _ = next(rendezvous(f"{init}?use_libuv=0", ranks.rank, ranks.world_size, timeout=timeout))
    return store


def _listen_at(host: str, port: int) -> int | None:
    """Open a socket that listens at this address alone, where torch's would at every address of the host.

    Returns its file descriptor; None for a name, which may mean another address to the other ranks, for an
    address that is not of this host, and where the port is taken: torch shares it, or says what is wrong.
    """
    try:
        version = ipaddress.ip_address(host).version
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG).detach()
    except (ValueError, OSError):
        return None


def _serve(host: str, port: int, timeout: timedelta, listener: int) -> TCPStore:
    """Open the store behind a socket that listens; a second group of this process finds it by its port."""
    return TCPStore(
        host,
        port,
        None,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener,
        use_libuv=False,
    )


def _at_address(init: str, ranks: Ranks, timeout: timedelta, environ: Mapping[str, str]) -> Store:
    place = urlsplit(init)
    try:
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not (host and port):
        raise TrainError(f"--init must be tcp://HOST:PORT, got {init}")
    if ranks.rank == 0 and (listener := _listen_at(host, port)) is not None:
        return _serve(host, port, timeout, listener)
    return _tcp(host, port, ranks, timeout)


def _in_file(init: str, ranks: Ranks, timeout: timedelta, environ: Mapping[str, str]) -> Store:
    """Open the store in a file, which must be new: torch's FileStore would believe an old run's entries."""
    path = _file_of(init, ranks, environ)
    if ranks.rank == 0:
        _create(path)
    deadline = time.monotonic() + timeout.total_seconds()
    while not path.exists():
        if time.monotonic() > deadline:
            raise TrainError(f"{ranks}: rank 0 has not created {path}; do all hosts share that folder?")
        time.sleep(0.05)
    return _SharedFile(path, ranks.world_size)


class _SharedFile(FileStore):
    """A FileStore that opens its file through a symbolic link of its own, which it removes when it leaves.

    torch's FileStore writes to the file when it is destroyed. If another rank removes the file at that
    moment, it is created again, and nobody would remove it. Without the link there is nothing to write to.
    """

    def __init__(self, path: Path, world_size: int) -> None:
        self._file, self._own = path, Path(tempfile.mkdtemp(prefix="muster-rendezvous-"))
        (self._own / path.name).symlink_to(path)
        super().__init__(str(self._own / path.name), world_size)

    def leave(self, *, remove: bool) -> None:
        """Remove the link, and the file too if `remove`."""
        shutil.rmtree(self._own, ignore_errors=True)
        if remove:
            self._file.unlink(missing_ok=True)


def _file_of(init: str, ranks: Ranks, environ: Mapping[str, str]) -> Path:
    """Return the file of `init`, with the launcher's name of this run, if it has one, at its end."""
    path = Path(urlsplit(init).path)
    if not (path.is_absolute() and path.parent.is_dir()):
        raise TrainError(f"--init file:///SHARED/PATH needs a path in a folder that exists, got {init}")
    return path.with_name(path.name + run_name(ranks, environ))


def _create(path: Path) -> None:
    try:
        path.open("x").close()
    except FileExistsError:
        raise TrainError(
            f"{path} exists already: left by an earlier run that was killed, or in use by another run\n"
            "remove it if no run uses it, or name another file"
        ) from None
    except OSError as error:
        raise TrainError(f"--init cannot create {path}: {error.strerror}") from error


def run_name(ranks: Ranks, environ: Mapping[str, str]) -> str:
    """Return the launcher's name of this run, the same on every rank and different for other runs; or "".

    The number of a Slurm step counts only where srun started the ranks: mpirun in a batch job starts its own
    daemons as a step, on all hosts but the first.
    """
    names = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MUSTER_JOB", "PMIX_NAMESPACE"]
    names += ["SLURM_JOB_ID", "SLURM_STEP_ID"] if ranks.launcher == "srun" else ["SLURM_JOB_ID"]
    values = [environ[name] for name in names if environ.get(name)]
    return "".join(f".{''.join(c if c.isalnum() else '-' for c in value)}" for value in values)


def _over_mpi(init: str, ranks: Ranks, timeout: timedelta, environ: Mapping[str, str]) -> Store:
    """Open the store on rank 0, at a port that the kernel chooses, and connect the other ranks to it."""
    try:
        from .mpi_world import broadcast  # noqa: PLC0415 - initialises MPI, so only where it is needed
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py found no MPI library
        raise TrainError(
            f"the ranks cannot find each other: {error}\n"
            "install mpi4py, or: mpirun -x MASTER_ADDR=<address of rank 0> -x MASTER_PORT=<free port there>"
        ) from error
    if ranks.rank == 0:
        store = _tcp("127.0.0.1", 0, ranks, timeout)
        broadcast((address_of(ranks), store.port), tuple[str, int], ranks)
        return store
    address, port = broadcast(("", 0), tuple[str, int], ranks)
    return _tcp(address, port, ranks, timeout)


_OPENERS: dict[str, Opener] = {"env": _at_master, "tcp": _at_address, "file": _in_file, "mpi": _over_mpi}


def _tcp(host: str, port: int, ranks: Ranks, timeout: timedelta) -> TCPStore:
    """Open the store on rank 0, or connect to it; crosscheck.py waits for the others."""
    if ranks.rank > 0:
        _wait_for_listener(host, port, ranks, timeout)
    return TCPStore(host, port, None, ranks.rank == 0, timeout, wait_for_workers=False, use_libuv=False)


def _wait_for_listener(host: str, port: int, ranks: Ranks, timeout: timedelta) -> None:
    """Wait until rank 0, which may start later than this one, listens there.

    torch's store would wait too, but if rank 0 never comes, it writes a page of C++ stack to stderr.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), max(0.1, left)).close()
        except OSError as error:
            if left <= 0:
                raise TrainError(
                    f"{ranks}: nothing listens at {host} port {port}, tried for "
                    f"{timeout.total_seconds():.0f} s: {error.strerror or error}\n"
                    "was rank 0 started, and is this its address?"
                ) from error
        else:
            return
        time.sleep(0.1)


def address_of(ranks: Ranks) -> str:
    """Return the address at which other hosts reach this one: that of the default route, if it has one.

    Connecting a datagram socket sends nothing; it only looks up the route. 192.0.2.1 is nobody's (RFC 5737).
    """
    if ranks.local_world_size == ranks.world_size:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
