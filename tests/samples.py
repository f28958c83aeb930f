"""Reads the file of a run's samples as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from muster.deploy.features.samples.messages import HostSample
from muster.deploy.features.samples.sample_file import SampleReader


def read_samples(path: str) -> Iterator[HostSample]:
    """The samples of a file, up to where it ends or is cut."""
    reader = SampleReader()
    with Path(path).open("rb") as file:
        while content := file.read(1 << 16):
            yield from reader.feed(content)
