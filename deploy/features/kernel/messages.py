"""The request for the kernel's messages of a host."""

from __future__ import annotations

from typing import Annotated

from ...core.connect.requests.request import Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Seconds


@lazy_dataclass(frozen=True)
class KernelMessage:
    """A message, the seconds since then, and its kind (features/kernel/wire.py)."""

    ago: Seconds
    kind: Annotated[str, Like(r"[a-z]{1,16}")]
    text: Annotated[str, AtMost(400)]


@lazy_dataclass(frozen=True)
class KernelMessages:
    """The messages of known kinds, the oldest first; `unread`: why there are none to read."""

    messages: Annotated[tuple[KernelMessage, ...], AtMost(64)]
    unread: Annotated[str, AtMost(400)]


KERNEL_MESSAGES = Request("kernel_messages", KernelMessages)
