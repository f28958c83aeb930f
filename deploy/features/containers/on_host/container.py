"""The job's container on this host: its start by the engine, commands in it, and its end."""

from __future__ import annotations

import collections
import contextlib
import os
import subprocess
import sys
import threading
from typing import IO, Any

from ....core.agent.processes import below, die_with_agent, end_descendants, process_table
from ....core.agent.supervisor import JobHandler, JobSupervisor
from ....core.wire.frames import Frame, read_frame, write_frame
from ....core.wire.paths import JobPaths
from ....core.wire.private_folders import make_private
from .engines import last_line

START_SECONDS, LEAVE_SECONDS, REMOVE_SECONDS = 120.0, 5.0, 4.0
PRIVATE = "$MUSTER_AGENT"
"""Stands for the agent's private folder in the engine's argv: the plan is made before that folder."""


class Container(JobHandler):
    """A container that stays as long as an attempt of the job. Its first process is `keeper.py`."""

    def __init__(self, job: JobSupervisor) -> None:
        super().__init__(job)
        self.attempt_began()

    def attempt_began(self) -> None:
        """Forget the container of an earlier attempt, which is gone."""
        self._request: Frame = {}
        self._lines: collections.deque[str] = collections.deque(maxlen=20)
        self._decided = threading.Event()
        """Set when the keeper has connected, or the engine's command has ended."""
        self._client: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()
        self._heard_out = threading.Event()
        """Set when the keeper has ended, and all that it reported has been passed on."""
        self._keeper = 0
        """The process of the keeper; 0 before its start and after its end."""
        self._stream: Any = None

    def is_over(self) -> bool:
        """Whether it has ended, and will report nothing more."""
        return not self._request or (self._ended.is_set() and self._heard_out.is_set())

    def do_container_start(self, request: Frame, payload: bytes) -> Frame:
        """Start it; OSError with the engine's message if it does not start."""
        job, self._request = self.job, request
        if not job.reaper:
            raise ValueError("prepare comes before container_start")
        make_private(job.muster_root / "home")
        (job.muster_root / "data").mkdir(mode=0o700, exist_ok=True)
        argv = [argument.replace(PRIVATE, str(job.private)) for argument in request["argv"]]
        self._client = job.reaper.start(
            argv,
            self._client_ended,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_agent,  # the child only calls prctl
        )
        reading = threading.Thread(target=self._read, args=(self._client.stdout,), daemon=True)
        reading.start()
        self._decided.wait(START_SECONDS)
        if not self._keeper:
            reading.join(1.0)
            if not self._ended.is_set():
                raise OSError(f"it did not start within {START_SECONDS:.0f} s")
            raise OSError(last_line("".join(self._lines)) or "it ended at once, without output")
        job.ranks.memory_of(self._keeper)
        return {}

    def hello(self, hello: Frame, stream: Any, connection: object) -> None:
        """Serve the keeper until its end."""
        private, job = str(self.job.private), self.job.job
        own = self._request["environment"] | {"TMPDIR": private, "MUSTER_AGENT": private}
        environment = {**own, **job["env"], "PATH": os.pathsep.join(job["path"])}
        write_frame(stream, {"env": environment})
        self._keeper, self._stream = hello["pid"], stream
        self._decided.set()
        with contextlib.suppress(OSError, ValueError):
            while received := read_frame(stream):
                frame, _ = received
                self.job.adopted_killed(frame["adopted"], frame["code"])
        self._keeper = 0
        self._heard_out.set()

    def entered(self, argv: list[str]) -> list[str]:
        """The command that runs a command in the container."""
        program = os.path.join(JobPaths(self.job.job["folder"]).programs, "enter.py")
        return [sys.executable, "-IS", program, *argv] if self._request.get("launcher_inside") else argv

    def ended(self) -> list[int]:
        """Let the keeper end, and wait until the engine has removed the container, which is empty."""
        if self._client:
            self._leave()
        return end_descendants() if self._request else []

    def _leave(self) -> None:
        if self._stream and self._keeper:
            with contextlib.suppress(OSError, ValueError):
                write_frame(self._stream, {"end": True})
        if not self._ended.wait(LEAVE_SECONDS if self._stream else 0.0) and self._request["remove"]:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                remove = self._request["remove"]
                subprocess.run(remove, timeout=REMOVE_SECONDS, capture_output=True, check=False)
            self._ended.wait(1.0)
        if self._ended.is_set() and self._stream:
            self._heard_out.wait(1.0)
        self._client = None

    def processes(self, found: list[int]) -> list[int]:
        """All below the agent and the keeper, without the keeper and the engine's."""
        if not self._request:
            return found
        table = process_table()
        inside = below(self._keeper, table) if self._keeper in table else []
        spared, pid = {self._keeper}, self._keeper
        while pid in table:  # podman's monitor and its children are below the agent too
            pid = table[pid].parent
            spared.add(pid)
        if self._client:
            spared |= {self._client.pid, *below(self._client.pid, table)}
        outside = [pid for pid in found if pid not in spared]
        return list(dict.fromkeys((*outside, *inside)))

    def _client_ended(self, code: int) -> None:
        self._ended.set()
        self._decided.set()

    def _read(self, stream: IO[bytes]) -> None:
        """Keep the last lines of the engine's command; a job prints elsewhere."""
        for line in stream:
            if line.strip():
                self._lines.append(line.decode(errors="replace"))
