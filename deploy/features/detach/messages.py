"""The request that detaches a job, and the report of its driver."""

from __future__ import annotations

from typing import Annotated

from ...core.connect.reports import Report
from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost, Between, lazy_dataclass
from ...core.hosts.bounds import Name, Text


@lazy_dataclass(frozen=True)
class Detached(Report, event="detached"):
    """The driver of a detached job has started the ranks (`title`), or why it could not."""

    title: Text = ""
    error: Text = ""
    unfit: Annotated[tuple[tuple[Name, Text], ...], AtMost(4096)] = ()
    exit_status: Annotated[int, Between(0, 255)] = 1


DETACH = Request("detach", Nothing)
