"""The result of a job for a Python program, read from the folder of its run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..core.decode import MALFORMED, from_json
from ..core.errors import MusterError
from ..core.job.bounded import content_of, value_of
from ..core.text.terminal import harmless, harmless_lines


class JobError(MusterError):
    """A job failed. Its text is the verdict."""

    def __init__(self, result: JobResult, text: str = "") -> None:
        super().__init__(harmless_lines(text) if text else result.verdict)
        self.result, self.exit_status = result, result.exit_status


class RankError(JobError):
    """The function raised an exception in a rank. All of it is text: nothing of a host is unpickled.

    `type_name`: the name of the class of the exception; `text`: its message.
    """

    def __init__(self, result: JobResult, rank: int, type_name: str, text: str, traceback: str) -> None:
        host = next((end.host for end in result.ranks if end.rank == rank), "")
        type_name, text, traceback = harmless(type_name), harmless_lines(text), harmless_lines(traceback)
        super().__init__(result, f"rank {rank} on {host}: {type_name}: {text}\n\n{traceback}".rstrip())
        self.rank, self.host = rank, host
        self.type_name, self.text, self.traceback = type_name, text, traceback


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank: its exit code, negative for a signal; None if it did not report one."""

    rank: int
    host: str
    local_rank: int
    code: int | None
    ended: float | None


@dataclass(frozen=True)
class FirstFailure:
    """The first thing that went wrong. docs/reference/json.md has the meanings of `kind`."""

    kind: str
    rank: int | None
    host: str | None
    reason: str
    time: float
    tail: tuple[str, ...]


@dataclass(frozen=True)
class WrittenFiles:
    """A number of files, their bytes, and the path of the largest; `more`: there may be more."""

    files: int
    bytes: int
    more: bool
    largest: str


@dataclass(frozen=True)
class HostFiles:
    """What the program wrote on a host: beside its code, and into $MUSTER_OUT. `Job.get` fetches it."""

    host: str
    beside: WrittenFiles
    out: WrittenFiles


@dataclass(frozen=True)
class JobResult:
    """The result of a job: the facts of its result.json."""

    job: str
    launcher: str
    state: Literal["done", "failed", "stopped"]
    exit_status: int
    attempt: int
    hosts: tuple[str, ...]
    ranks: tuple[RankEnd, ...]
    first_failure: FirstFailure | None
    started: float
    ended: float
    written: tuple[HostFiles, ...] = ()
    folder: Path = Path()
    """The folder of its run, with logs, metrics and the page."""

    @property
    def verdict(self) -> str:
        """The verdict, as a launch prints it."""
        return harmless_lines(content_of(self.folder / "verdict.txt").decode(errors="replace").rstrip("\n"))

    def raise_on_error(self) -> None:
        """`JobError` with the verdict, unless every rank ended with 0."""
        if self.exit_status:
            raise JobError(self)


def read_result(folder: Path) -> JobResult | None:
    """The result in the folder of a run; None if there is none yet."""
    path = folder / "result.json"
    try:
        result: JobResult = from_json(JobResult, value_of(content_of(path)))
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise MusterError(f"{path}: {error}") from None
    if first := result.first_failure:
        tail = tuple(map(harmless, first.tail))
        first = replace(first, reason=harmless(first.reason), tail=tail)
    written = tuple(
        replace(on_host, beside=_shown(on_host.beside), out=_shown(on_host.out)) for on_host in result.written
    )
    return replace(result, folder=folder, first_failure=first, written=written)


def _shown(files: WrittenFiles) -> WrittenFiles:
    return replace(files, largest=harmless(files.largest))
