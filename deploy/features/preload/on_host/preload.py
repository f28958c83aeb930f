"""Keeps a process with the imports of the ranks ready on this host, from which the next ranks are forked.

It runs in_rank/muster_preload.py, by the command line and with the environment of a rank that runs here. The
modules are those that this rank has loaded from installed packages, when their number no longer grows.
A new rank is forked only if it would be started in the same way; else its wrapper starts Python, and `cold`
says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....core.agent.cgroups import group_files
from ....core.agent.processes import Reaper, die_with_agent, peek
from ....core.agent.rank import environment_of, position_of
from ....core.agent.ranks import ask_rank
from ....core.agent.supervisor import JobHandler, JobSupervisor
from ....core.wire.frames import Frame
from ....core.wire.paths import JobPaths

ASK_SECONDS = 10.0
LAST_WORDS = 2000
MIB = 1 << 20
MODULE = "torch.distributed.run"
PROGRAM = os.path.join("in_rank", "muster_torchrun.py")
BOOTSTRAP = (
    "import runpy, socket, sys; runpy.run_path(sys.argv[1])['wait'](socket.socket(fileno=int(sys.argv[2])))"
)
MOST_ANSWER, MOST_REQUEST = 4096, 200_000
"""Bytes; the second is what a socket takes at once by default, without its overhead."""
# Variables that differ from attempt to attempt or from rank to rank, and that no module reads at its import.
_OWN = re.compile(
    r"(GROUP_|ROLE_|LOCAL_)?(RANK|WORLD_SIZE)|GROUP_WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)|TMPDIR|"
    r"(GLOO|NCCL|TP)_SOCKET_IFNAME|PWD|OLDPWD|SHLVL|_|(TORCHELASTIC|OMPI|PMIX|PMI|PRTE|ORTE|OPAL|MUSTER)_.*"
)
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Preload(JobHandler):
    """The process, from the first look at a rank until it has ended."""

    def __init__(self, job: JobSupervisor) -> None:
        super().__init__(job)
        self.state, self.why, self.modules = "waiting", "", 0
        self.pid = 0
        """The process; 0 before it is started, and after its end."""
        self._looking: threading.Thread | None = None
        self._is_restart = False
        self._seen: dict[str, str] = {}
        self._is_complete = False
        self._said = b""
        self._argv: list[str] = []
        self._env: dict[str, str] = {}
        self._control: socket.socket | None = None
        self.launcher = LauncherPreload()
        self.cold: dict[str, int] = {}
        """Why ranks have started without it, and how many."""
        self.released = 0

    def do_preload(self, request: Frame, payload: bytes) -> Frame:
        """Keep the imports of ranks and torchrun ready for the next attempt; answers how far they are.

        `last`: there will be no next attempt.
        """
        job = self.job
        if not job.reaper or not job.private:
            raise ValueError("prepare comes before preload")
        answer = self._look(job.reaper, job.private)
        if answer["state"] == "ready" and not request["last"]:
            programs = JobPaths(job.job["folder"]).programs
            self.launcher.prepare(job.reaper, job.argv, job.environment(), programs, **job.options)
            answer = self._look(job.reaper, job.private)
        return answer

    def attempt_began(self) -> None:
        """It was there before this attempt, which starts from it if it can."""
        self._is_restart = True

    def launched(self, argv: list[str], on_end: Callable[[int], None]) -> subprocess.Popen[bytes] | None:
        """The torchrun that waits, if it would be started in the same way."""
        return self.launcher.release(argv, self.job.environment(), self.job.options["cwd"], on_end)

    def processes(self, found: list[int]) -> list[int]:
        """Those with imports for the next attempt do not count."""
        return [pid for pid in found if pid not in {self.pid, self.launcher.pid}]

    def close(self) -> None:
        """End the process."""
        self.launcher.close()
        if self._control:
            self._control.close()
            self._control = None
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)

    def resident(self) -> int:
        """Bytes that it and the torchrun of the next attempt take now; what they share counts for both."""
        return sum(_resident(pid) for pid in (self.pid, self.launcher.pid) if pid)

    def _look(self, reaper: Reaper, private: Path) -> Frame:
        """Start the process when the ranks have done their imports; answers how far it is."""
        if self.state == "waiting" and not (self._looking and self._looking.is_alive()):
            if self._is_complete:
                self._start(reaper, private)
            else:
                self._looking = threading.Thread(target=self._ask, args=(private,), daemon=True)
                self._looking.start()
        state = "importing" if self.state == "ready" and self.launcher.imports else self.state
        answer = {"state": state, "why": self.why, "memory": self.resident(), "modules": self.modules}
        return {**answer, "released": self.released, "cold": self.cold}

    def _ask(self, private: Path) -> None:
        """Ask a rank for its modules; they are complete if there were as many the last time."""
        consoles = sorted(private.glob("console-*"))
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            answer = ask_rank(str(consoles[0]), {"do": "modules"}, ASK_SECONDS)
            seen = {str(name): str(origin) for name, origin in answer["modules"].items()}
            complete = not answer["importing"] and len(seen) == len(self._seen)
            self._is_complete = complete and bool(_installed(seen))
            self._seen = seen

    def _start(self, reaper: Reaper, private: Path) -> None:
        """Start the process as the first rank that runs here was started."""
        programs = self.job.ranks.programs()
        if not programs:
            return
        pid = programs[min(programs)][0]
        self._argv = _words(pid, "cmdline")
        self._env = dict(word.partition("=")[::2] for word in _words(pid, "environ"))
        if why := self._unfit(pid):
            self.state, self.why = "cold", why
            return
        path = private / "preload.json"
        path.write_text(json.dumps(self._seen))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        modules = f"muster_preload {self._env.get('MUSTER_START', '')}"
        with theirs:
            process = reaper.start(
                self._argv,
                self._ended,
                cwd=self.job.job["cwd"],
                env={**self._env, "MUSTER_PRELOAD_FD": str(theirs.fileno()), "MUSTER_START": modules},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=die_with_agent,  # the child only calls prctl
            )
        self.pid, self.state, self._control = process.pid, "importing", ours
        ours.send(json.dumps({"modules": str(path), "names": _installed(self._seen)}).encode())
        threading.Thread(target=self._hear, args=(ours,), daemon=True).start()
        threading.Thread(target=self._pump, args=(process.stdout,), daemon=True).start()

    def _unfit(self, pid: int) -> str:
        """Why no process is started; empty if it can be."""
        if not self._argv or os.path.realpath(self._argv[0]) != os.path.realpath(f"/proc/{pid}/exe"):
            return "the program is no Python program"
        need, free = 2 * _resident(pid), free_memory()
        if free is not None and free < need:
            return f"{free // MIB} MiB of memory are free, and it may need {need // MIB}"
        return ""

    def _hear(self, control: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(control.recv(MOST_REQUEST))
            self.modules, self.why = said["modules"], said["why"]
            self.state = "cold" if self.why else "ready"

    def _pump(self, stream: Any) -> None:
        while part := stream.read1(1 << 16):
            self._said = (self._said + part)[-LAST_WORDS:]

    def _ended(self, code: int) -> None:
        self.pid = 0
        self.job.ranks.explained({"code": code})  # a kill for lack of memory must not explain a rank's end
        if self.state != "cold":
            self.state = "cold"
            self.why = f"its process has ended ({code}): {self._said.decode(errors='replace').strip()[-300:]}"

    # -- new ranks --

    def hello(self, hello: Frame, stream: Any, connection: socket.socket) -> None:
        """Have a rank forked for the wrapper that has connected, or tell it to start its program itself."""
        try:
            self._release(hello, connection)
            self.released += 1
        except (_Cold, OSError, KeyError, ValueError, TypeError) as error:
            why = str(error) if isinstance(error, _Cold) else repr(error)
            if self._is_restart:
                self.cold[why] = self.cold.get(why, 0) + 1
            connection.sendall(b"{}\n")

    def _release(self, hello: Frame, connection: socket.socket) -> None:
        if self.state != "ready" or self._control is None:
            raise _Cold(self.why or "it is not ready")
        peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        ranks = position_of(hello["env"])
        programs = JobPaths(self.job.job["folder"]).programs
        env = environment_of(self.job.job, ranks, hello["env"], programs)
        self._require_same(hello["argv"], env, peer)
        request = {
            "argv": hello["argv"],
            "env": env,
            "outer": hello["env"],
            "cwd": self.job.job["cwd"],
            "agent": os.getpid(),
            "umask": int(_status(peer, "Umask"), 8),
            "cores": sorted(os.sched_getaffinity(peer)),
        }
        message = json.dumps(request).encode()
        socket.send_fds(self._control, [message], [connection.fileno()], socket.MSG_DONTWAIT)

    def _require_same(self, argv: list[str], env: Mapping[str, str], peer: int) -> None:
        """`_Cold` unless Python would be started here as the process was that did the imports."""
        if argv != self._argv[1:]:
            raise _Cold("the command line is another one")
        if other := _differing(env, self._env):
            raise _Cold(f"{other[0]} has another value")
        for name in ("limits", "cgroup"):
            if peek(f"/proc/{peer}/{name}") != peek(f"/proc/{self.pid}/{name}"):
                raise _Cold(f"its {name} differ")


class _Cold(Exception):  # a reason, not an error
    """Why a rank does its imports itself."""


def _differing(env: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The variables that differ, without those that differ from attempt to attempt."""
    names = sorted(name for name in env.keys() | other.keys() if env.get(name) != other.get(name))
    return [name for name in names if not _OWN.fullmatch(name)]


def _installed(modules: Mapping[str, str]) -> list[str]:
    """The modules of installed packages, in the order in which the rank began to import them."""
    return [name for name, origin in modules.items() if any(part in origin for part in _INSTALLED)]


def _words(pid: int, name: str) -> list[str]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
        return [os.fsdecode(word) for word in file.read().rstrip(b"\0").split(b"\0")]
    return []


def _status(pid: int, name: str) -> str:
    """A field of proc_pid_status(5)."""
    return peek(f"/proc/{pid}/status").partition(f"{name}:")[2].partition("\n")[0].strip()


def _resident(pid: int) -> int:
    return int((_status(pid, "VmRSS") or "0").split()[0]) << 10


def free_memory() -> int | None:
    """Bytes that this host, and the memory group of this process, have free; None if unknown."""
    free: list[int] = []
    if available := peek("/proc/meminfo").partition("MemAvailable:")[2]:
        free.append(int(available.split()[0]) << 10)
    limits = group_files("memory", "memory.max", "memory.limit_in_bytes")
    for limit, used in zip(limits, group_files("memory", "memory.current", "memory.usage_in_bytes")):
        with contextlib.suppress(ValueError):  # "max", or no such file
            free.append(int(peek(limit)) - int(peek(used)))
    return min(free, default=None)


# -- the torchrun of the next attempt --


class LauncherPreload:
    """The process that waits, one for each attempt after the first."""

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None

    @property
    def pid(self) -> int:
        """The process; 0 if there is none."""
        return self._waiting.process.pid if self._waiting and not self._waiting.ended else 0

    @property
    def imports(self) -> bool:
        """Whether it is not ready yet."""
        return bool(self.pid and self._waiting and not self._waiting.ready)

    def close(self) -> None:
        """End the process."""
        if self._waiting:
            self._waiting.end()

    def prepare(
        self, reaper: Reaper, argv: Sequence[str], env: dict[str, str], programs: str, **options: Any
    ) -> None:
        """Start the process for a launcher with this command, if that is torchrun, and once in an attempt."""
        if is_torchrun(argv) and self._waiting is None:
            self._waiting = _Waiting(reaper, argv, env, os.path.join(programs, PROGRAM), options)

    def release(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, on_end: Callable[[int], None]
    ) -> subprocess.Popen[bytes] | None:
        """The process as the launcher with this command; None if there is none that could be it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        request = json.dumps({"argv": argv[1:], "env": env, "cwd": cwd}).encode()
        is_same = waiting.start == argv[:3] and not _differing(env, waiting.env)
        if is_same and len(request) <= MOST_REQUEST and waiting.begin(request, on_end):
            return waiting.process
        waiting.end()
        return None


class _Waiting:
    """A process from its start until it is a launcher."""

    def __init__(
        self, reaper: Reaper, argv: Sequence[str], env: dict[str, str], script: str, options: dict[str, Any]
    ) -> None:
        self.start, self.env = argv[:3], env
        self.ready = self.ended = False
        self._on_end: Callable[[int], None] = lambda code: None
        self._ending = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = reaper.start(
                # MODULE is no argument: the process is found by it, as any torchrun.
                [argv[0], "-c", BOOTSTRAP, script, str(theirs.fileno()), MODULE],
                self._ended,
                env=env,
                pass_fds=(theirs.fileno(),),
                **options,
            )
        threading.Thread(target=self._hear, daemon=True).start()

    def begin(self, request: bytes, on_end: Callable[[int], None]) -> bool:
        """Let it run as a launcher, whose end is reported from now on; False if it cannot."""
        with self._ending:
            if not self.ready or self.ended:
                return False
            self._on_end = on_end
        with contextlib.suppress(OSError):  # it has just ended
            self._control.send(request)
        self._control.close()
        return True

    def end(self) -> None:
        """End it, before it is a launcher."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError, LookupError):
            self.ready = not json.loads(self._control.recv(MOST_ANSWER))["why"]

    def _ended(self, code: int) -> None:
        with self._ending:
            self.ended = True
            on_end = self._on_end
        on_end(code)


def is_torchrun(argv: Sequence[str]) -> bool:
    """Whether this is a command of core/plan/torchrun.py."""
    return len(argv) > 2 and argv[1] in {"-m", "-c"} and MODULE in argv[2]
