"""The frames in which reports of agents arrive, and the check of each: the word of it, and its type."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.frames import Frame
from ..decode import MALFORMED, from_json
from .reports import (
    CommandEnd,
    DaemonEnd,
    DataRead,
    Detached,
    EnvironmentMade,
    FileGot,
    FileHave,
    FileStuck,
    ImageLoaded,
    InputTaken,
    LauncherLine,
    LogEnded,
    Output,
    ProgramOver,
    Pulses,
    Ran,
    RankEnd,
    RankStart,
    Report,
    Sampled,
    Shell,
    ShellEnd,
    StopAsked,
)

MOST_OUTPUT = 1 << 20  # of a command of `fab run`, in bytes (deploy/agent/commands.py)

KINDS: Mapping[str, type[Report]] = {
    "rank-start": RankStart,
    "output": Output,
    "log-ended": LogEnded,
    "stdin": InputTaken,
    "rank-end": RankEnd,
    "program-over": ProgramOver,
    "pulse": Pulses,
    "launcher": LauncherLine,
    "command-end": CommandEnd,
    "shell": Shell,
    "shell-end": ShellEnd,
    "daemon-end": DaemonEnd,
    "stop-asked": StopAsked,
    "detached": Detached,
    "ran": Ran,
    "file-have": FileHave,
    "file-got": FileGot,
    "file-stuck": FileStuck,
    "image-loaded": ImageLoaded,
    "data-read": DataRead,
    "env-made": EnvironmentMade,
}
"""The word that an agent uses for each kind of report."""

BUSY = "busy"
"""Sent by an agent while it works on a request: it lives, and has nothing to report."""

SAMPLE = "sample"
"""Sent by an agent that watches its host. Beside KINDS, because no sample can end a connection."""


def room(frame: Frame) -> int:
    """The bytes that may follow a report: only the output of a command follows its report."""
    return MOST_OUTPUT if frame.get("event") == "ran" else 0


def of_frame(frame: Frame, payload: bytes = b"") -> Report:
    """The report that an agent sent; one of MALFORMED for a protocol error."""
    word = frame.get("event")
    if word == SAMPLE:
        return Sampled.of(frame)
    if not isinstance(word, str) or word not in KINDS:
        raise ValueError(f"an unknown report {str(word)[:40]!r}")
    try:
        report: Report = from_json(KINDS[word], {**frame, "output": payload} if word == "ran" else frame)
    except MALFORMED as error:
        raise ValueError(f"the report {word}: {error}") from None
    return report
