"""Results in .muster/bench beside the hosts file: the newest of each kind, and a baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ...core.decode import MALFORMED
from ...core.errors import UsageError
from ...core.wire.durable import write_atomically
from ...core.wire.files import read_regular
from ...core.wire.os_errors import explain
from .host_speeds import SlowHost, Speeds
from .link_speeds import Links, Slow

MOST_BYTES = 1 << 30
Kept = Links | Speeds
Result = TypeVar("Result", Links, Speeds)


def folder_beside(hosts_file: Path) -> Path:
    """The folder of the results of these hosts."""
    return hosts_file.parent / ".muster" / "bench"


def newest_of(folder: Path, kind: str) -> Path:
    """`links-gloo.json`: the newest result of a kind."""
    return folder / f"{kind}.json"


def baseline_of(folder: Path, kind: str) -> Path:
    """`links-gloo.baseline.json`: the result to compare later ones with."""
    return folder / f"{kind}.baseline.json"


def compare(
    result: Result, kind: str, hosts_file: Path, baseline: str, *, keep_this: bool
) -> tuple[Result | None, Path]:
    """Keep a result as the newest of its kind; returns the baseline to compare it with, and its file.

    It becomes the baseline itself if there is none, or if `keep_this` asks for it. `baseline`: another file.
    """
    folder = folder_beside(hosts_file)
    path = Path(baseline) if baseline else baseline_of(folder, kind)
    before = read(path, type(result))
    keep(newest_of(folder, kind), result.as_json())
    if keep_this or before is None:
        keep(path, result.as_json())
    return before, path


def as_json(
    result: Kept,
    slow: Sequence[Slow | SlowHost],
    worse: Sequence[Slow | SlowHost] | None,
    problems: Mapping[str, str],
) -> dict[str, Any]:
    """A result with slow links or hosts, those slower than in the baseline, and problems, for programs."""
    return {
        **result.as_json(),
        "slow": [asdict(each) for each in slow],
        "slower": None if worse is None else [asdict(each) for each in worse],
        "problems": dict(problems),
    }


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result, whole or not at all. OSError names the file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())


def read(path: Path, kind: type[Result]) -> Result | None:
    """The result in a file; None without the file. `UsageError` for any other content."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: too large for a result of muster bench")
        return kind.of_json(json.loads(read_regular(path)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: {explain(error)}") from None
    except MALFORMED as error:
        raise UsageError(f"{path}: not a result of muster bench: {error}; remove the file") from None
