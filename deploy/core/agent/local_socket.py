"""The local socket of an agent, for ranks, mpirun's remote shell and other agents of this host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from ..wire.clock import steady
from ..wire.frames import Frame, read_frame, write_frame
from ..wire.os_errors import explain
from ..wire.rank_logs import rank_stem
from .disks import disk_of, unanswered
from .ranks import Ranks


class LocalSocket:
    """Listens in a folder that only this user can enter."""

    def __init__(
        self, folder: str, job: Frame, ranks: Ranks, send: Callable[[Frame], None], handlers: Any
    ) -> None:
        """`handlers`: those of core/agent/main.py, for words that are not the job's own."""
        self.job, self.ranks, self._send, self._handlers = job, ranks, send, handlers
        self._shells: dict[int, Any] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.path.join(folder, "agent"))
        self._listener.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def shell_ended(self, number: int, code: int) -> None:
        """Send mpirun's remote shell on this host the exit code of its command on another host."""
        if client := self._shells.pop(number, None):
            with contextlib.suppress(OSError):
                write_frame(client, {"code": code})

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone would not wake the thread
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")
        try:
            if received := read_frame(stream):
                hello, _ = received
                own = {"rank": self._rank, "shell": self._shell, "stop": self._stop, "over": self._over}
                word = hello["hello"]
                if word in own:
                    own[word](hello, stream)
                else:
                    self._handlers.of_word(word).hello(hello, stream, connection)
        except Exception:  # noqa: BLE001  # whatever it is, the client must not wait for an answer
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _rank(self, hello: Frame, stream: Any) -> None:
        rank = hello["rank"]
        log = rank_stem(rank, self.job["host"], self.job.get("attempt", 0))
        write_frame(stream, {"log": log, **{name: self.job[name] for name in ("cwd", "env", "folder")}})
        self.ranks.started(rank, hello["pid"], hello.pop("stand_in", 0))
        self._send({**hello, "event": "rank-start"})
        ended = False
        with contextlib.suppress(OSError, ValueError):
            while received := read_frame(stream):
                frame, _ = received
                if frame["event"] == "rank-end":
                    ended = True
                    self._ended(rank, frame)
                else:
                    self._send({**_explained(frame), "rank": rank})
        if not ended:
            # rank.py may be killed itself: its program goes with it (PR_SET_PDEATHSIG), so the rank ends.
            self._ended(rank, {"event": "rank-end", "code": -signal.SIGKILL, "time": None, "tail": []})

    def _ended(self, rank: int, end: Frame) -> None:
        at = end["time"] or steady()  # now: consequences of this end must not seem earlier
        ended, found = self.ranks.ended(rank, end), dict[str, str]()
        for handler in self._handlers.of_job():
            with contextlib.suppress(Exception):  # the end itself must be reported
                found.update(handler.rank_ended(end))
        self._send({**ended, "found": found, "rank": rank, "time": at})

    def _over(self, hello: Frame, stream: Any) -> None:
        """The program of a rank is over, and its process may live on (in_rank/muster_program_end.py)."""
        fields = ("rank", "time", "error", "alive", "ends_in", "ended")
        self._send({"event": "program-over", **{name: hello[name] for name in fields}})

    def _shell(self, hello: Frame, stream: Any) -> None:
        number = id(stream)
        self._shells[number] = stream
        self._send({"event": "shell", "number": number, "host": hello["host"], "command": hello["command"]})

    def _stop(self, hello: Frame, stream: Any) -> None:
        self._send({"event": "stop-asked", "by": hello["by"], "grace": hello.get("grace")})
        write_frame(stream, {})


def _explained(frame: Frame) -> Frame:
    """A rank's report; the error number of a log that ends early becomes a sentence."""
    if frame["event"] != "log-ended":
        return frame
    if frame["errno"] is None:
        return {"event": "log-ended", "why": unanswered(disk_of(frame["path"]))}
    error = OSError(frame["errno"], os.strerror(frame["errno"]), frame["path"])
    return {"event": "log-ended", "why": explain(error)}
