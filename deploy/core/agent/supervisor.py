"""The job on this host: its folder, its commands with all that they start, and their end."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ..wire.clock import steady
from ..wire.durable import remove, write_atomically
from ..wire.frames import Frame
from ..wire.limits import require_fit
from ..wire.paths import JobPaths, MusterPaths
from ..wire.private_folders import make_private
from ..wire.store import DamagedError, Store, sweep_old_jobs
from ..wire.variables import is_foreign
from .ending import Ending
from .local_socket import LocalSocket
from .processes import PR_SET_CHILD_SUBREAPER, Reaper, descendants, die_with_agent, prctl, send_signals
from .ranks import Ranks

PREFIX, LOCK = "muster-", "lock"
_NAME = re.compile(PREFIX + r"[a-z0-9_]{8}")
MOST_ENTRIES = 1 << 14
"""The most entries of the host's temporary folder that are checked."""
MOST_LINKS = 10
"""The most links that a message names."""


def make_private_folder() -> Path:
    """A new folder; the lock in it is held as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    draft = folder / f"{LOCK}.new"
    # Never closed. Under this name no sweep takes it for the lock of a killed agent.
    fcntl.flock(os.open(draft, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
    draft.rename(folder / LOCK)
    return folder


def sweep(temporary: Path) -> None:
    """Remove folders of this user's killed agents from a temporary folder. Others may write there too."""
    with contextlib.suppress(OSError), os.scandir(temporary) as entries:
        for entry, _ in zip(entries, range(MOST_ENTRIES)):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    """Remove a folder whose lock is free. OSError for one that is not this user's, or is in use."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        inside = Path(f"/proc/self/fd/{opened}")  # the folder that was checked, whatever has its name by now
        with open(os.open(inside / LOCK, os.O_RDWR | os.O_NOFOLLOW), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for entry in inside.iterdir():
                if entry.name != LOCK:  # last, so that an interrupted sweep is continued
                    remove(entry)
            (inside / LOCK).unlink()
            os.rmdir(folder)
    finally:
        os.close(opened)


def link_kept(kept: Iterable[tuple[str, str]]) -> None:
    """Make the folders that outlive the job, and the links to them in its code: (link, folder)."""
    for link, folder in kept:
        make_private(Path(folder))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        try:
            os.symlink(folder, link)
        except FileExistsError:
            if not (os.path.islink(link) and os.readlink(link) == folder):
                raise OSError(
                    f"{link} is no link to {folder} any more: an earlier attempt of the job has replaced the "
                    "link that --keep made; let the program remove only what is in the folder"
                ) from None


def require_targets(links: Iterable[tuple[str, str]]) -> None:
    """OSError names the links of the code, (path, target), whose target does not exist on this host."""
    absent = [f"{path} -> {target}" for path, target in links if not os.path.exists(target)]
    if absent:
        more = [f"and {len(absent) - MOST_LINKS} more"] if len(absent) > MOST_LINKS else []
        raise OSError(
            f"links of the code have no target here: {', '.join([*absent[:MOST_LINKS], *more])}; mount the "
            "target on this host, list the link in .musterignore, or bring the files with muster data push"
        )


LONGEST_LINE = 1 << 16  # a longer line is passed on in pieces
SILENCE_SECONDS = 12.0  # the driver pings every 2 s (core/connect/listener.py)
STDIN = 0


class Reports:
    """Sends the reports about an attempt until it is over: a late one must not seem to be about the next."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send, self._over = send, False
        self._sending = threading.Lock()

    def __call__(self, frame: Frame) -> None:
        """Send a report. A request to stop the job is about all of its attempts."""
        with self._sending:
            if not self._over or frame["event"] == "stop-asked":
                self._send(frame)

    def end(self) -> None:
        """Send no more."""
        with self._sending:
            self._over = True

    def pump(self, name: str, stream: IO[bytes]) -> None:
        """Send each line of a launcher's stream."""
        while line := stream.readline(LONGEST_LINE):
            text = line.decode(errors="surrogateescape")
            self({"event": "launcher", "stream": name, "text": text})


class Heartbeat:
    """Ends this agent when the driver is silent: a network that drops packets closes no lifeline."""

    def __init__(self) -> None:
        self.heard = 0.0
        self._over = threading.Event()

    def hear(self) -> None:
        """Note a sign of life of the driver. From the first one on, its silence counts."""
        first, self.heard = not self.heard, time.monotonic()
        if first and not self._over.is_set():
            threading.Thread(target=self.end_after_silence, daemon=True).start()

    def end(self) -> None:
        """The silence does not count any more: no process is left that would have to be ended."""
        self._over.set()

    def end_after_silence(self) -> None:
        """Requests that wait unread, while the agent works on another one, are signs of life too."""
        waited = 0
        while time.monotonic() - self.heard < SILENCE_SECONDS:
            if self._over.wait(0.5):
                return
            waits = unread(STDIN)
            if waits > waited:
                self.heard = time.monotonic()
            waited = waits
        os.kill(os.getpid(), signal.SIGHUP)


def unread(descriptor: int) -> int:
    """The bytes that wait in a pipe or socket."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


PASSED_ON = {"SIGUSR1": signal.SIGUSR1, "SIGUSR2": signal.SIGUSR2}
OPEN_MPI_DAEMONS = {"orted", "prted"}
STEP_SECONDS = 0.5  # of the end, after which the driver asks again


class JobHandler:
    """Something optional of a job on this host: a handler with `needs="job"` in core/wire/protocol.py.

    It answers requests as any handler. From the first one on, the job calls its methods below; each may be
    left out. `hello(hello, stream, connection)` answers its words. Handlers act in the order of the table.
    """

    def __init__(self, job: JobSupervisor) -> None:
        self.job = job

    def attempt_began(self) -> None:
        """An attempt is prepared: the job has new ranks, and a new private folder."""

    def launched(self, argv: list[str], on_end: Callable[[int], None]) -> subprocess.Popen[bytes] | None:
        """A process that runs this command already; else the job starts one."""

    def entered(self, argv: list[str]) -> list[str]:
        """The command that runs a command where the ranks are."""
        return argv

    def processes(self, found: list[int]) -> list[int]:
        """The processes of the attempt, of those that were found below the agent."""
        return found

    def rank_ended(self, end: Frame) -> dict[str, str]:
        """Texts to add to the report of the end of a rank, by their names (`RankEnded.found`)."""
        return {}

    def ending(self) -> None:
        """The attempt is ended; its processes still run."""

    def ended(self) -> list[int]:
        """Remove what the ended processes used; returns the processes that could not be ended."""
        return []

    def is_over(self) -> bool:
        """Whether it has nothing left of the attempt."""
        return True


class JobSupervisor:
    """Answers the requests of a launch, from `prepare` on, and of further attempts of the same job."""

    def __init__(self, muster_root: Path, send: Callable[[Frame], None], handlers: Any) -> None:
        self.muster_root, self._to_driver, self._handlers = muster_root, send, handlers
        self.send = Reports(send)
        self.store = Store(Path(MusterPaths(str(muster_root)).store))
        self.job: Frame = {}
        self.private: Path | None = None
        self._folders: list[Path] = []
        """The private folders of all attempts so far."""
        self.reaper: Reaper | None = None
        self.ranks = Ranks()
        self.local_socket: LocalSocket | None = None
        self._job_lock: int | None = None
        self._heartbeat = Heartbeat()
        self._stopped = False
        self._ending: Ending | None = None
        self.shared: dict[str, Callable[[], Any]] = {}
        """What handlers tell each other, by its name."""
        self.argv: list[str] = []
        """The command of this host."""

    def close(self) -> None:
        """End all processes of the job, with its grace, and remove the private folders."""
        if self.job:
            self._conclude(self._begin_end(self.job["grace"]).finish())
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def do_prepare(self, request: Frame, payload: bytes) -> Frame:
        """Make the job's folder: the code, the plan's files, and the lock that marks it as in use.

        Answers which contents of the code are damaged in the store. They are removed there, and nothing is
        started: the driver sends them, and repeats the request.
        """
        paths = JobPaths(request["folder"])
        folder = Path(paths.folder)
        make_private(self.muster_root, folder.parent, folder, Path(paths.logs), Path(paths.out))
        require_fit(paths.folder, tempfile.gettempdir())
        self._hold(paths.lock(request["host"]))
        require_targets(request.get("links", ()))
        damaged: list[str] = []
        listed, code = Path(paths.code_list), json.dumps(request["code"]).encode()
        # The time of this list tells what the program writes (core/wire/written.py), also in a restart.
        is_restart = listed.exists() and listed.read_bytes() == code
        before = listed.stat().st_mtime_ns if is_restart else None
        for files, target in ((request["code"], paths.code), (request["library"], paths.library)):
            try:
                self.store.check_out(files, Path(target), before)
            except DamagedError as error:
                damaged += error.digests
        if damaged:
            return {"damaged": damaged}
        link_kept(request.get("kept", ()))
        Path(request["cwd"]).mkdir(parents=True, exist_ok=True)  # the code may have no file in it
        if not is_restart:
            write_atomically(listed, code, durable=False)
        for path_name, mode, text in request["files"]:
            os.makedirs(os.path.dirname(path_name), exist_ok=True)
            write_atomically(Path(path_name), text.encode(), mode, durable=False)
        sweep_old_jobs(folder.parent)
        self._leave_attempt()
        self.job = request
        self.private = make_private_folder()
        self._folders.append(self.private)
        # Beside the launch: they may have much content.
        threading.Thread(target=sweep, args=(Path(tempfile.gettempdir()),), daemon=True).start()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.reaper = self.reaper or Reaper(self.adopted_killed)
        self.local_socket = LocalSocket(str(self.private), request, self.ranks, self.send, self._handlers)
        for handler in self._handlers.of_job():
            handler.attempt_began()
        write_atomically(Path(paths.agent(request["host"])), str(self.private).encode(), durable=False)
        return {}

    def _leave_attempt(self) -> None:
        """Forget an earlier attempt of the job, of which nothing may be left."""
        if not self.reaper or not self.local_socket:
            return
        is_over = self._stopped and all(handler.is_over() for handler in self._handlers.of_job())
        if not is_over or self._processes():
            raise ValueError("an earlier attempt is not over here")
        self.reaper.reap_all()
        self.local_socket.close()
        self.send.end()
        # In a thread, because it may hold much.
        threading.Thread(target=shutil.rmtree, args=(self.private, True), daemon=True).start()
        self.send, self._heartbeat = Reports(self._to_driver), Heartbeat()
        self.ranks, self._stopped, self._ending = Ranks(), False, None

    def _hold(self, lock: str) -> None:
        """Note that the job's folder is in use, as long as this process lives."""
        if self._job_lock is None:
            self._job_lock = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._job_lock, fcntl.LOCK_SH)

    def do_start(self, request: Frame, payload: bytes) -> Frame:
        """Start the job's command of this host."""
        send, ranks = self.send, self.ranks

        def on_end(code: int) -> None:
            end = {"event": "command-end", "code": code, "time": steady()}
            send(ranks.explained(end))

        self.argv = request["argv"]
        self._spawn(self.argv, on_end)
        return {}

    def do_shell(self, request: Frame, payload: bytes) -> Frame:
        """Run a shell command that mpirun sent to this host, as sshd would."""
        number, send = request["number"], self.send
        self._spawn(
            ["/bin/sh", "-c", request["command"]],
            lambda code: send({"event": "shell-end", "number": number, "code": code, "time": steady()}),
        )
        return {}

    def do_shell_end(self, request: Frame, payload: bytes) -> Frame:
        """Send mpirun's remote shell on this host the exit code of its command on another host."""
        if self.local_socket:
            self.local_socket.shell_ended(request["number"], request["code"])
        return {}

    def do_ping(self, request: Frame, payload: bytes) -> Frame:
        """A heartbeat of the driver. From the first one on, the driver's silence ends the job too."""
        self._heartbeat.hear()
        return {}

    def do_signal(self, request: Frame, payload: bytes) -> Frame:
        """Send SIGUSR1 or SIGUSR2 to every rank here: its wrapper passes it on to the program."""
        self.signal_ranks(PASSED_ON[request["name"]])
        return {}

    def signal_ranks(self, number: int) -> bool:
        """Send a signal to every rank here; returns whether there are any."""
        wrappers = self.ranks.wrappers().values()
        for wrapper in wrappers:
            send_signals(wrapper, number)
        return bool(wrappers)

    def do_stop(self, request: Frame, payload: bytes) -> Frame:
        """End everything that was started here, for a moment; answers whether that is over, else who is left.

        The driver repeats this request. The `grace` of the last one counts, from the first SIGTERM on;
        `patience`: seconds to wait for processes that ranks left behind, before those get SIGTERM.
        """
        from .stuck import described

        ending = self._begin_end(request["grace"])
        ending.grace, ending.patience = request["grace"], request["patience"]
        over, left = ending.go_on(STEP_SECONDS), list[int]()
        if over:
            left = self._conclude(ending.left or [])
            self._stopped = not left
            if self._stopped:
                self._heartbeat.end()
        return {
            "over": over,
            "left": described(left, ending.rank_of),
            "saving": ending.saving,
            "behind": ending.behind,
            "ended": ending.ended,
        }

    def _begin_end(self, grace: float) -> Ending:
        if self._ending is None:
            for handler in self._handlers.of_job():
                handler.ending()
            self._ending = Ending(self._processes, self.ranks, grace)
        return self._ending

    def _conclude(self, left: list[int]) -> list[int]:
        """Have the handlers remove what the ended processes used; returns those that could not be ended."""
        more = [pid for handler in self._handlers.of_job() for pid in handler.ended()]
        return left or more

    def _processes(self) -> list[int]:
        """Every living process of the attempt."""
        found = descendants()
        for handler in self._handlers.of_job():
            found = handler.processes(found)
        return found

    # -- processes --

    def adopted_killed(self, name: str, code: int) -> None:
        """Report the end of Open MPI's daemon, which is adopted because it leaves its parent."""
        if name in OPEN_MPI_DAEMONS:
            self.send({"event": "daemon-end", "name": name, "code": code, "time": steady()})

    def _spawn(self, argv: list[str], on_end: Callable[[int], None]) -> None:
        if not self.reaper:
            raise ValueError("prepare comes before start")
        handlers = self._handlers.of_job()
        process = next(filter(None, (handler.launched(argv, on_end) for handler in handlers)), None)
        if process is None:
            for handler in handlers:
                argv = handler.entered(argv)
            process = self.reaper.start(argv, on_end, env=self.environment(), **self.options)
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            threading.Thread(target=self.send.pump, args=(name, stream), daemon=True).start()

    @property
    def options(self) -> dict[str, Any]:
        """How launchers are started here."""
        return {
            "cwd": self.job["folder"],  # not the project's: `python -m` would load its torch.py for torchrun
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
            "preexec_fn": _prepare_launcher,  # the child only calls prctl and sigaction
        }

    def environment(self) -> dict[str, str]:
        """The environment of mpirun, torchrun and prted here; ranks get the plan's on top, in `rank.py`."""
        environment = {name: value for name, value in os.environ.items() if not is_foreign(name)}
        environment["PATH"] = os.pathsep.join(self.job["path"] + [environment.get("PATH", os.defpath)])
        # Temporary files go where the agent removes them: stale session folders break later mpiruns.
        private = {"TMPDIR": str(self.private), "MUSTER_AGENT": str(self.private)}
        return {**environment, **private, **self.job["env"]}


def _prepare_launcher() -> None:
    """In the child, before exec: it ends with the agent, and not by a signal that is for the ranks."""
    die_with_agent()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
