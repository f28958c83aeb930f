"""The request for the files that the program of a job has written on a host."""

from __future__ import annotations

from ...core.connect.requests.attempt import WrittenFiles
from ...core.connect.requests.request import Request
from ...core.content.messages import FolderMark
from ...core.decode import lazy_dataclass


@lazy_dataclass(frozen=True)
class Written:
    """The files that the program of a job has written on a host: beside the code, and into $MUSTER_OUT.

    `folder` is equal on hosts that share the job's folder.
    """

    beside: WrittenFiles
    out: WrittenFiles
    folder: FolderMark


OUTPUTS = Request("outputs", Written)
