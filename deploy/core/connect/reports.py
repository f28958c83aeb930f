"""The reports that an agent sends without a request, each kind as a type.

`report_frames.py` checks each report where it arrives. A mismatch ends the connection to its host.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import Annotated, Literal, NamedTuple

from ...features.samples import messages as samples
from ...features.samples.messages import HostSample
from ..decode import MALFORMED, AtMost, Between, message
from ..errors import HostError
from ..hosts.bounds import Bytes, Code, Count, DiffId, Digest, Name, Number, Pid, Printed, Rank, Seconds, Text
from ..hosts.facts import Environment
from ..hosts.stuck import StuckProcesses
from ..wire.frames import Frame


class Report:
    """A report. `event`: the name that an agent uses for its kind; the driver makes those without a name."""

    def __init_subclass__(cls, *, event: str = "") -> None:
        if event:
            KINDS[event] = cls


KINDS: dict[str, type[Report]] = {}
"""The reports of agents, by the name of their event."""


@message(frozen=True)
class OutOfMemory:
    """The kernel killed a process for lack of memory; `limit`: of its cgroup, in bytes."""

    limit: Bytes | None


@message(frozen=True)
class RankStart(Report, event="rank-start"):
    """A rank has started."""

    rank: Rank
    local_rank: Rank
    world_size: Rank


@message(frozen=True)
class RankOutput(Report, event="output"):
    """Output of a rank: whole lines, or at its end the rest."""

    rank: Rank
    stream: Literal["out", "err"]
    text: Printed


@message(frozen=True)
class LogEnded(Report, event="log-ended"):
    """The log of a rank on its own host ends early; `why`: the reason, such as a full disk."""

    rank: Rank
    why: Text


@message(frozen=True)
class GpuUser:
    """A process that uses the GPU of a rank. `rank`: the rank of the job that it is."""

    pid: Pid
    user: Name = ""
    program: Name = ""
    rank: Rank | None = None


@message(frozen=True)
class RankEnded(Report, event="rank-end"):
    """A rank has ended, at a time of its host's clock."""

    rank: Rank
    code: Code
    time: Seconds
    tail: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    out_of_memory: OutOfMemory | None = None
    alone: bool = False
    """Its MPI world has no other rank, though the job has more."""
    terminated: bool = False
    """The launcher asked it to end before it did."""
    gpu_users: Annotated[tuple[GpuUser, ...], AtMost(64)] = ()
    """The other processes on its GPU, if it had no memory there."""


@message(frozen=True)
class ProgramOver(Report, event="program-over"):
    """The program of a rank is over, at a time of its host's clock, but its process has not ended yet."""

    rank: Rank
    time: Seconds
    error: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    """The last lines of the traceback, if an exception ended the program."""
    alive: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    """The threads and processes that keep it alive: `thread 'writer' in save (train.py:31)`."""
    ends_in: Annotated[float, Between(0, 3600)] = 0.0
    """The process ends itself after so many seconds, 0 for never; `ended`: it has done so."""
    ended: bool = False


@message(frozen=True)
class Sampled(Report):
    """A sample of a host and its ranks; None for a malformed one: the host loses only this sample."""

    sample: HostSample | None

    @classmethod
    def of(cls, frame: Frame) -> Sampled:
        """The sample in a frame: JSON in a text, so that no value in it is a protocol error.

        The driver adds its time and host (features/samples/driver.py).
        """
        try:
            sample = json.loads(frame["sample"])
            return cls(samples.of_json({**sample, "at": 0, "host": "", "attempt": 0}))
        except MALFORMED:
            return cls(None)


@message(frozen=True)
class LauncherLine(Report, event="launcher"):
    """A line of mpirun or torchrun."""

    stream: Literal["out", "err"]
    text: Printed


@message(frozen=True)
class CommandEnd(Report, event="command-end"):
    """The launcher's command on a host has ended."""

    code: Code
    time: Seconds
    out_of_memory: OutOfMemory | None = None


@message(frozen=True)
class ShellAsked(Report, event="shell"):
    """mpirun on the reporting host asks for a command on another host."""

    number: Number
    host: Name
    command: Text


@message(frozen=True)
class ShellEnd(Report, event="shell-end"):
    """Such a command has ended, on the reporting host."""

    code: Code
    time: Seconds


@message(frozen=True)
class DaemonEnd(Report, event="daemon-end"):
    """Open MPI's daemon on a host was killed."""

    name: Name
    code: Code
    time: Seconds


@message(frozen=True)
class StopAsked(Report, event="stop-asked"):
    """`fab stop` was called on a machine that is not the driver's. `by`: who called it.

    `grace`: from then on, in place of that of the launch.
    """

    by: Name
    grace: Annotated[float, Between(0, 1e6)] | None = None


@message(frozen=True)
class Detached(Report, event="detached"):
    """The driver of a detached job has started the ranks (`title`), or why it could not."""

    title: Text = ""
    error: Text = ""
    unfit: Annotated[tuple[tuple[Name, Text], ...], AtMost(4096)] = ()
    exit_status: Annotated[int, Between(0, 255)] = 1


@message(frozen=True)
class CommandRan(Report, event="ran"):
    """A command of `fab run` has ended. `cut`: bytes of its output that are left out.

    `left`: its processes that not even SIGKILL has ended.
    """

    code: Code
    cut: Bytes
    timed_out: bool
    left: StuckProcesses = ()
    output: bytes = b""


@message(frozen=True)
class StreamPart(Report, event="stream-part"):
    """A part of a connection that is passed on (features/forward/driver.py); an empty one is the last."""

    stream: Count
    part: bytes = b""


@message(frozen=True)
class StreamTaken(Report, event="stream-taken"):
    """The host has written a part of a connection."""

    stream: Count


@message(frozen=True)
class StreamClosed(Report, event="stream-closed"):
    """A connection on the host takes no more."""

    stream: Count


@message(frozen=True)
class FileHave(Report, event="file-have"):
    """The bytes of a file that are on a host."""

    digest: Digest
    have: Bytes


@message(frozen=True)
class FileGot(Report, event="file-got"):
    """A file is on a host; `error`: why its content could not be used.

    `wrong`: the content itself is wrong, from any sender.
    """

    digest: Digest
    error: Text = ""
    wrong: bool = False


@message(frozen=True)
class FileStuck(Report, event="file-stuck"):
    """No other host could give this host the rest of a file, or it was damaged on the way."""

    digest: Digest
    have: Bytes
    text: Text


@message(frozen=True)
class ImageLoaded(Report, event="image-loaded"):
    """The engine of a host has an image, or why it does not."""

    id: Name = ""
    created: Name = ""
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)] = ()
    error: Text = ""


@message(frozen=True)
class DataRead(Report, event="data-read"):
    """The bytes of a data set's source that are read."""

    done: Bytes
    total: Bytes


@message(frozen=True)
class EnvironmentMade(Report, event="env-made"):
    """A host has made an environment, in so many seconds, or why it could not."""

    seconds: Seconds
    environment: Environment | None = None
    error: Text = ""


@message(frozen=True)
class FileSent(Report):
    """Not from a host: so much of a file the driver has sent to it; `error`: why it gets nothing more."""

    digest: str = ""
    have: int = 0
    error: str = ""


@message(frozen=True)
class Lost(Report):
    """Not from a host: the connection to it has ended, for this reason."""

    reason: HostError = field(compare=False)


class Event(NamedTuple):
    """A report and its host. `size`: about how many bytes of this machine's memory it takes."""

    host: str
    report: Report
    size: int = 0
