"""The flag of preloaded imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import UsageError
from ...core.plan.flags import Options, flag


@dataclass(frozen=True)
class PreloadOptions(Options):
    """Whether hosts keep the imports of the ranks ready for the next attempt."""

    preload: bool = flag(
        False,
        "keep the imports of the ranks ready on each host while the job runs, so that a restart needs "
        "none; takes the memory of one more rank for each host, with torchrun of two",
        group="Survive failures",
    )

    def check(self, given: Mapping[str, Any]) -> None:
        """`UsageError` without restarts, and beside options that exclude it."""
        if self.preload and "max_restarts" not in given:
            raise UsageError("--preload is for restarts; add --max-restarts N")
        for name in ("no_record", "image"):
            if self.preload and name in given:
                raise UsageError(f"--preload does not work with --{name.replace('_', '-')}; leave one out")
