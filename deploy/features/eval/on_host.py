"""Asks ranks of this host through their consoles (in_rank/muster_console.py).

The sockets lie in the private folder of the job's agent, named after their ranks. A rank's answer is input of
the user's program, which is not trusted: every size is bounded.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core.agent.ranks import ask_rank
from ...core.wire.frames import Frame
from ...core.wire.paths import JobPaths, MusterPaths

AT_ONCE = 64
GRACE_SECONDS = 2.0  # beyond the time limit of the expression: the rank interrupts it and reports that
NOT_AN_ANSWER = "protocol error: not an answer of a console"
MOST_TEXT = 1 << 14
MOST_ANSWERS = 1 << 21  # characters from all ranks of a host: they come in one line
LEAST_TEXT = 200
SILENT = "it does not answer: it is stopped, or in a function of C that lets no other thread of Python run"


class Consoles:
    """Answers for every job of this host, except those with `--no-record`."""

    def __init__(self, muster_root: Path) -> None:
        self._paths = MusterPaths(str(muster_root))

    def do_console_eval(self, request: Frame, payload: bytes) -> Frame:
        """The value of an expression in each rank; none if the job is not on this host, or has ended."""
        paths = self._paths.job(request["job"])
        sockets = _sockets(paths, request["host"])
        if request["only"] is not None:
            sockets = {rank: path for rank, path in sockets.items() if rank == request["only"]}
        seconds = float(request["seconds"])
        question = {"do": "eval", "expression": request["expression"], "seconds": seconds, "code": paths.code}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pending = {rank: pool.submit(_ask, path, question, seconds) for rank, path in sockets.items()}
        room = max(LEAST_TEXT, min(MOST_TEXT, MOST_ANSWERS // max(1, len(pending))))
        answers = {str(rank): answer for rank, future in pending.items() if (answer := future.result())}
        return {
            "recorded": Path(paths.programs, "in_rank", "muster_console.py").exists(),
            "ranks": {
                rank: {name: text[:room] for name, text in answer.items()} for rank, answer in answers.items()
            },
        }


def _sockets(paths: JobPaths, host: str) -> dict[int, str]:
    """The console of each rank of a job on this host."""
    try:
        folder = Path(paths.agent(host)).read_text()
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    matches = [match for match in map(re.compile(r"console-(\d{1,7})").fullmatch, names) if match]
    return {int(match[1]): os.path.join(folder, match[0]) for match in matches}


def _ask(path: str, question: Frame, seconds: float) -> dict[str, str] | None:
    """The answer of a rank; None if the rank is gone."""
    try:
        answer = ask_rank(path, question, seconds + GRACE_SECONDS)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError:  # a time-out is one too
        return {"error": SILENT}
    except (ValueError, RecursionError):
        return {"error": NOT_AN_ANSWER}
    if not isinstance(answer, dict):
        return {"error": NOT_AN_ANSWER}
    texts = {name: text for name in ("at", "value", "error") if isinstance(text := answer.get(name), str)}
    return texts if "value" in texts or "error" in texts else {"error": NOT_AN_ANSWER}
