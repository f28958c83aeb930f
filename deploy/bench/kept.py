"""Results that stay beside the hosts file, in .muster/bench: the newest of each kind, and a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..common.os_errors import explain
from ..decode import NONSENSE
from ..errors import UsageError
from .links import Links

MOST_BYTES = 1 << 30


def folder_beside(hosts_file: Path) -> Path:
    """Where the results of these hosts are."""
    return hosts_file.parent / ".muster" / "bench"


def newest_of(folder: Path, kind: str, backend: str) -> Path:
    """`links-gloo.json`: the newest result."""
    return folder / f"{kind}-{backend}.json"


def baseline_of(folder: Path, kind: str, backend: str) -> Path:
    """`links-gloo.baseline.json`: the result that later ones are compared with."""
    return folder / f"{kind}-{backend}.baseline.json"


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result, whole or not at all. OSError names the file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.replace(path)


def links_in(path: Path) -> Links | None:
    """The links of a file; None if there is no file. `UsageError` if it is something else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: too large for the links of a cluster")
        return Links.of_json(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: {explain(error)}") from None
    except NONSENSE as error:
        raise UsageError(f"{path}: no result of muster bench links: {error}; remove it") from None


def newest_links(folder: Path) -> list[Links]:
    """The newest links of every backend that was measured."""
    files = sorted(folder.glob("links-*.json")) if folder.is_dir() else []
    found = (links_in(path) for path in files if not path.name.endswith(".baseline.json"))
    return [links for links in found if links is not None]
