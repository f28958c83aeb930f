"""Requests about data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.reports import Report
from ...core.connect.requests import Nothing, Request
from ...core.connect.silence import STUCK_SECONDS
from ...core.content.messages import FolderMark
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Bytes, Count, Digest, Name, Text

_Chunks = Annotated[str, AtMost(1 << 20), Like("[0-9a-f]*")]
"""A set of numbers of chunks, a bit each (features/data/wire/manifest.py)."""


@dataclass(frozen=True)
class DataBundle:
    """Chunks, or a manifest, as a file that a host can send."""

    digest: Digest
    bytes: Bytes


@dataclass(frozen=True)
class DataBegun:
    """The chunks that a host lacks, and those that it can send."""

    lacking: _Chunks
    have: _Chunks


@dataclass(frozen=True)
class DataSet:
    """A data set of a host."""

    name: Name
    files: Count = 0
    bytes: Bytes = 0
    digest: Annotated[str, Like("([0-9a-f]{64})?")] = ""
    error: Text = ""


@dataclass(frozen=True)
class DataSets:
    """The data sets of a host."""

    place: FolderMark
    sets: Annotated[tuple[DataSet, ...], AtMost(4096)]


@dataclass(frozen=True)
class DataVerified:
    """The damage in a data set, a line each."""

    digest: Digest
    damaged: Annotated[tuple[Text, ...], AtMost(64)]


@dataclass(frozen=True)
class DataRemoved:
    """The bytes of a data set that is removed."""

    freed: Bytes


@lazy_dataclass(frozen=True)
class DataRead(Report, event="data-read"):
    """The bytes of a data set's source that are read."""

    done: Bytes
    total: Bytes


DATA_SCAN = Request("data_scan", DataBundle, stuck_after=STUCK_SECONDS)
DATA_BEGIN = Request("data_begin", DataBegun, stuck_after=STUCK_SECONDS)
DATA_BUNDLE = Request("data_bundle", DataBundle)
DATA_PUBLISH = Request("data_publish", Nothing, stuck_after=STUCK_SECONDS)
DATA_LIST = Request("data_list", DataSets, stuck_after=STUCK_SECONDS)
DATA_VERIFY = Request("data_verify", DataVerified, stuck_after=STUCK_SECONDS)
DATA_REMOVE = Request("data_remove", DataRemoved, stuck_after=STUCK_SECONDS)
