"""`run`: a function in every rank, and its values."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import MusterError, UsageError
from ..core.job.bounded import content_of, value_of
from ..features.returned_values import driver, wire
from ..features.returned_values.driver import CALL, MOST_RETURNED, PYTHON, name_of
from .job import start
from .job_result import JobError, JobResult, RankError
from .keywords import RunFlags

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
DATA = f"{CALL}_data"


def run(
    function: Callable[..., T], *arguments: object, show: bool = True, **flags: Unpack[RunFlags]
) -> list[T]:
    """Call a function with these arguments in every rank, and return the value of each rank, in order.

    The values are plain: None, bool, int, float, str, bytes, and list, tuple, set and dict of them. A
    function of an importable module is sent by its name, any other with its code. The program's working tree
    travels as in every launch. Raises `RankError` for an exception of the function, `JobError` for any other
    failure, and another `MusterError` if the job does not start.
    """
    for name in ("script", "module", "args", "dry_run"):
        if name in flags:
            raise UsageError(f"run() runs a function and takes no {name}; launch() does")
    with tempfile.TemporaryDirectory(prefix="muster-call-") as folder:
        write_call(Path(folder), function, arguments)
        called = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
        keywords = {**flags, "module": CALL, "args": called}
        with start(keywords, show=show, call=folder) as job:
            result = job.wait()
    return [_value(result, rank) for rank in _ranks(result)]


def write_call(folder: Path, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Write the files with which a rank calls the function (returned_values/in_rank/muster_call.py)."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, arguments))
    except Exception as error:  # whatever an object's own method raises
        raise UsageError(
            f"{function!r} cannot be sent to the ranks: {type(error).__name__}: {error}"
        ) from error
    data = folder / DATA
    data.mkdir()
    (data / "call.pickle").write_bytes(call)
    if b"cloudpickle" in call:  # it has code, which only this version of Python reads; a name has none
        (folder / PYTHON).write_text("{}.{}".format(*sys.version_info))
    shutil.copy(Path(driver.__file__).parent / "in_rank" / f"{CALL}.py", folder)
    shutil.copy(wire.__file__, data / "plain_values.py")
    package = Path(cloudpickle.__file__).parent
    shutil.copytree(package, data / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def _ranks(result: JobResult) -> list[int]:
    """All ranks, that of the first failure first if the job failed."""
    ranks = [end.rank for end in result.ranks]
    first = result.first_failure.rank if result.first_failure else None
    if first in ranks:
        ranks.sort(key=lambda rank: (rank != first, rank))
    return ranks


def _value(result: JobResult, rank: int) -> Any:
    """The value that a rank returned. `RankError` or `JobError` if it returned none."""
    path = result.folder / name_of(rank)
    try:
        record = value_of(content_of(path, MOST_RETURNED))
        if error := record.get("error"):
            raise RankError(result, rank, str(error["type"]), str(error["text"]), str(error["traceback"]))
        result.raise_on_error()
        return wire.decoded(record["value"])
    except FileNotFoundError:
        result.raise_on_error()
        raise JobError(result, f"rank {rank}: its value did not arrive here; see {result.folder}") from None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise MusterError(f"{path}: not the value of a rank: {error}") from None
