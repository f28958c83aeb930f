"""The request for imports that are ready for the next attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from ...core.connect.requests.request import Request
from ...core.decode import AtMost, message
from ...core.hosts.bounds import Bytes, Count, Text


@message(frozen=True)
class Preloaded:
    """How far a host is with the imports for the next attempt; `why`: why it will not have them.

    Of the ranks of this attempt, `released` have started with them, and `cold` without, by the reason.
    """

    state: Literal["waiting", "importing", "ready", "cold"]
    why: Text
    memory: Bytes
    modules: Count
    released: Count
    cold: Annotated[Mapping[Text, Count], AtMost(1 << 12)]


PRELOAD = Request("preload", Preloaded)
