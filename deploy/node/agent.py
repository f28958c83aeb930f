"""The keeper of one host: starts the job's commands, reports over stdio, and leaves nothing behind.

The driver sends this package to the node's own Python over SSH; nothing but the standard library is needed
(Python 3.9 or newer, Linux). The keeper is a child subreaper: whatever its commands start stays below it, so
that "end everything of this job" is a walk of the process tree and never a search by name. Its lifeline is
its standard input: when that closes, for whatever reason, the job on this host ends.

Requests carry "do" and are answered in order with "reply"; events carry "event" and come at any time.
Ranks (`rank.py`) and mpirun's remote shell (`rsh.py`) of this host talk to the keeper over a Unix socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from deploy.node.cleaning import Cleaning
from deploy.node.commands import Commands
from deploy.node.detaching import Detaching
from deploy.node.door import Door
from deploy.node.facts import facts
from deploy.node.files import Files
from deploy.node.health import health
from deploy.node.images import Images
from deploy.node.jobs import Jobs, make_private
from deploy.node.meeting import Meeting, reach_all, reach_hosts
from deploy.node.processes import PR_SET_CHILD_SUBREAPER, Reaper, die_with_keeper, end_descendants, prctl
from deploy.node.ranks import Ranks
from deploy.node.stacks import Stacks
from deploy.node.store import Store, sweep_old_jobs, write_atomically
from deploy.node.wire import Frame, Readable, Writable, read_frame, write_frame

# The environment of another launcher, or of this SSH session, must not reach a rank.
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "TORCHELASTIC_", "SSH_", "MUSTER_")
OPEN_MPI_DAEMONS = {"orted", "prted"}
SILENCE_SECONDS = 12.0  # the driver pings every 2 s (deploy/execute/heartbeat.py)
FOREIGN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


class Keeper:
    """Answers the driver's requests and reports what happens on this host."""

    def __init__(self, inbox: Readable, outbox: Writable) -> None:
        self.inbox, self.outbox = inbox, outbox
        self._writing = threading.Lock()
        self.home = Path.home() / ".muster"
        self.store = Store(self.home / "store")
        jobs = Jobs(self.home / "jobs")
        self.files = Files()
        self.parts = (
            *(self, jobs, Detaching(jobs.root, self.store, self.send), Stacks(self.home, self.store)),
            *(Commands(self.send), self.files, Cleaning(self.home), Images(self.home / "images", self.send)),
        )
        self.job: Frame = {}
        self.meeting: Meeting | None = None
        self.private: Path | None = None
        self.reaper: Reaper | None = None
        self.ranks = Ranks()
        self.door: Door | None = None
        self._job_lock: int | None = None
        self._heard: float | None = None

    def serve(self) -> None:
        """Answer requests until the lifeline closes; then end everything that was started."""
        try:
            while True:
                received = read_frame(self.inbox)
                if received is None:
                    break
                request, payload = received
                answer = self.answer(request, payload)
                self.send(answer, answer.pop("payload", b""))
        finally:
            end_descendants(self.ranks.are_there)
            self.files.close()
            if self.private:
                shutil.rmtree(self.private, ignore_errors=True)

    def answer(self, request: Frame, payload: bytes) -> Frame:
        """The reply to one request; the driver explains what went wrong, no traceback here."""
        try:
            do = next(found for part in self.parts if (found := getattr(part, "do_" + request["do"], None)))
            return {"reply": request["id"], **do(request, payload)}
        except (OSError, KeyError, ValueError, tarfile.TarError) as error:
            return {"reply": request["id"], "error": self._explain(error)}

    def _explain(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"no space left for the job in {self.home}; make room there"
        return f"{type(error).__name__}: {error}"

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        """Write one frame to the driver; a driver that is gone is noticed by the lifeline, not here."""
        with self._writing, contextlib.suppress(OSError, ValueError):
            write_frame(self.outbox, frame, payload)

    # -- requests --

    def do_facts(self, request: Frame, payload: bytes) -> Frame:
        """What this host is."""
        return facts()

    def do_health(self, request: Frame, payload: bytes) -> Frame:
        """How this host is."""
        return health()

    def do_time(self, request: Frame, payload: bytes) -> Frame:
        """What this host's clock says."""
        return {"time": time.time()}

    def do_meet(self, request: Frame, payload: bytes) -> Frame:
        """Reserve a port here for the ranks to meet, and let others prove that they reach it."""
        self.meeting = Meeting(request["nonce"])
        return {"port": self.meeting.port}

    def do_try_to_meet(self, request: Frame, payload: bytes) -> Frame:
        """The same for a check, to which having no port is an answer."""
        try:
            return self.do_meet(request, payload)
        except OSError as error:
            return {"refused": error.strerror or str(error)}

    def do_unmeet(self, request: Frame, payload: bytes) -> Frame:
        """Free the listening socket for rank 0; the port stays reserved."""
        if self.meeting:
            self.meeting.close_listener()
        return {}

    def do_reach(self, request: Frame, payload: bytes) -> Frame:
        """Which addresses of the head lead there from here."""
        return {"interfaces": reach_all(request["addresses"], request["port"], request["nonce"])}

    def do_reach_hosts(self, request: Frame, payload: bytes) -> Frame:
        """Which addresses of which hosts lead there from here, and why the others do not."""
        return {"reached": reach_hosts(request["targets"])}

    def do_missing(self, request: Frame, payload: bytes) -> Frame:
        """Which contents the driver has to send."""
        return {"missing": self.store.missing(request["digests"])}

    def do_store(self, request: Frame, payload: bytes) -> Frame:
        """Take in contents."""
        self.store.add(payload)
        return {}

    def do_prepare(self, request: Frame, payload: bytes) -> Frame:
        """Make the job's folder: the code, the plan's files, and the lock that says it is in use."""
        folder = Path(request["folder"])
        make_private(self.home, folder.parent, folder, folder / "logs", folder / "out")
        self._job_lock = os.open(folder / f"lock.{request['host']}", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._job_lock, fcntl.LOCK_SH)
        self.store.check_out(request["code"], folder / "code")
        write_atomically(folder / "code.json", json.dumps(request["code"]).encode(), 0o600)
        for path_name, mode, text in request["files"]:
            write_atomically(Path(path_name), text.encode(), mode)
        sweep_old_jobs(folder.parent)
        self.job = request
        self.private = Path(tempfile.mkdtemp(prefix="muster-"))
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.reaper = Reaper(self._adopted_killed)
        self.door = Door(str(self.private), request, self.ranks, self.send)
        write_atomically(folder / f"keeper.{request['host']}", str(self.private).encode(), 0o600)
        return {}

    def do_start(self, request: Frame, payload: bytes) -> Frame:
        """Start the job's command of this host."""

        def on_end(code: int) -> None:
            self.send(self.ranks.explained({"event": "command-end", "code": code}))

        self._spawn(request["argv"], on_end)
        return {}

    def do_shell(self, request: Frame, payload: bytes) -> Frame:
        """Run a shell command that mpirun sent to this host, as sshd would."""
        number = request["number"]
        self._spawn(
            ["/bin/sh", "-c", request["command"]],
            lambda code: self.send({"event": "shell-end", "number": number, "code": code}),
        )
        return {}

    def do_shell_end(self, request: Frame, payload: bytes) -> Frame:
        """Tell mpirun's remote shell on this host how its command ended on the other one."""
        if self.door:
            self.door.shell_ended(request["number"], request["code"])
        return {}

    def do_ping(self, request: Frame, payload: bytes) -> Frame:
        """The driver is there. From the first of these on, its silence is an end too."""
        first, self._heard = self._heard is None, time.monotonic()
        if first:
            threading.Thread(target=self._mind_silence, daemon=True).start()
        if request.get("pulse"):
            self.send({"event": "pulse", "ranks": self.ranks.pulse()})
        return {}

    def _mind_silence(self) -> None:
        """A network that drops packets closes no lifeline: after a silence, close it from this side."""
        while self._heard is not None and time.monotonic() - self._heard < SILENCE_SECONDS:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    def do_stop(self, request: Frame, payload: bytes) -> Frame:
        """End everything that was started here; says what could not be ended."""
        return {"left": end_descendants(self.ranks.are_there)}

    def do_fetch(self, request: Frame, payload: bytes) -> Frame:
        """The content of a file of the job, None if there is none."""
        path = Path(self.job["folder"]) / request["path"]
        return {"text": path.read_text(errors="replace") if path.is_file() else None}

    # -- processes --

    def _adopted_killed(self, name: str, code: int) -> None:
        """Report the end of Open MPI's daemon, which is adopted because it leaves its parent."""
        if name in OPEN_MPI_DAEMONS:
            self.send({"event": "daemon-end", "name": name, "code": code})

    def _spawn(self, argv: list[str], on_end: Callable[[int], None]) -> None:
        if not self.reaper:
            raise ValueError("prepare comes before start")
        process = self.reaper.start(
            argv,
            on_end,
            cwd=self.job["cwd"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_keeper,  # the child only calls prctl
        )
        threading.Thread(target=self._pump_launcher, args=(process.stdout,), daemon=True).start()

    def _environment(self) -> dict[str, str]:
        """The environment of mpirun, torchrun and prted here; ranks get the plan's on top, in `rank.py`."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES
        }
        own["PATH"] = os.pathsep.join(self.job["path"] + [own.get("PATH", os.defpath)])
        # Temporary files go where the keeper removes them: stale session folders break later mpiruns.
        private = {"TMPDIR": str(self.private), "MUSTER_KEEPER": str(self.private)}
        return {**own, **private, **self.job["env"]}

    def _pump_launcher(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.send({"event": "launcher", "text": line.decode(errors="surrogateescape")})


def main() -> None:
    """Serve the driver on stdin and stdout; SIGTERM, SIGINT and SIGHUP end it as a closed lifeline does."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    Keeper(sys.stdin.buffer, sys.stdout.buffer).serve()


if __name__ == "__main__":
    main()
