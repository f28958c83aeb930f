"""Reads the file of a run's samples as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from muster.deploy.core.hosts.host_sample import HostSample, of_line


def read_samples(path: str) -> Iterator[HostSample]:
    """The samples of a file, without damaged lines."""
    for line in Path(path).read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            yield of_line(line)
