"""Whether this host has what the absolute links of a job's code lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable

MOST_TOLD = 10


def require_targets(links: Iterable[tuple[str, str]]) -> None:
    """OSError names the links, each a path in the tree with its target, that lead to nothing here."""
    absent = [f"{path} -> {target}" for path, target in links if not os.path.exists(target)]
    if absent:
        more = [f"and {len(absent) - MOST_TOLD} more"] if len(absent) > MOST_TOLD else []
        raise OSError(
            f"links of the code lead to nothing here: {', '.join([*absent[:MOST_TOLD], *more])}; mount the "
            "target on this host, list the link in .musterignore, or bring the files with muster data push"
        )
