"""An entry of the protocol between driver and agent (core/wire/protocol.py, features/all_handlers.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Handler(NamedTuple):
    """A class of the agent that answers requests: `do_NAME(request, payload)` for each name."""

    module: str
    kind: str
    needs: str
    """The arguments of its constructor: `send`, the handler `transfers` or `job`, all `handlers`, the agent's
    folder `muster_root`, or a folder in it."""
    requests: Mapping[str, str]
    """The names of its requests, by the text in front of the error of a failed one."""
    words: str = ""
    """The words with which processes of this host call it (core/agent/local_socket.py)."""
    quick: str = ""
    """Its requests that use no disk: they are answered at once, without a thread, which would delay them."""

    @property
    def names(self) -> list[str]:
        return " ".join(self.requests.values()).split()
