"""Requests while large files go to hosts, and from host to host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ..connect.requests import Nothing, Request
from ..decode import AtMost, Like
from ..hosts.bounds import Address, Bytes, Digest, Port

MOST_SERVED = 4096  # layers of an image, wheels of an environment
FolderMark = Annotated[str, Like("[0-9a-f]{32}")]
"""Equal only for hosts that share a folder."""


@dataclass(frozen=True)
class FilesServed:
    """The addresses at which a host serves files, the bytes of each that it has, and its folder's mark."""

    port: Port
    addresses: Annotated[tuple[Address, ...], AtMost(8)]
    have: Annotated[Mapping[Digest, Bytes], AtMost(MOST_SERVED)]
    place: FolderMark


BLOB_SERVE = Request("blob_serve", FilesServed)
BLOB_TAKE = Request("blob_take", Nothing)
BLOB_COMPLETE = Request("blob_complete", Nothing)
BLOB_PULL = Request("blob_pull", Nothing)
BLOB_FORGET = Request("blob_forget", Nothing)
