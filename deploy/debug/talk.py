"""A talk with one rank: what it writes is shown, and each line that it asks for comes from a person."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ..connect.channel import Channel
from ..connect.requests.consoles import OPEN, SAY
from ..errors import MusterError
from .answers import require_record

OPEN_SECONDS = 20.0
HEAR_SECONDS = 2.0  # an agent answers so often, also while its rank is silent
SAY_SECONDS = 30.0


def open_talk(
    job: str, channels: Mapping[str, Channel], places: Mapping[int, str], rank: int, *, hold: bool
) -> Channel:
    """Begin a talk with a rank; returns the channel to its host, the only one that hears of it.

    `MusterError` if the rank is not running there.
    """
    host = places[rank]
    if host not in channels:
        raise MusterError(f"{job}: rank {rank} is on {host}, which gives no answer")
    channel = channels[host]
    opened = channel.ask(OPEN, seconds=OPEN_SECONDS, job=job, host=host, rank=rank, hold=hold)
    require_record(job, [opened.recorded])
    if not opened.here:
        raise MusterError(f"{job}: rank {rank} is not running on {host}")
    return channel


def talk(channel: Channel, write: Callable[[str], object], read: Callable[[str], str]) -> None:
    """Pass on what the rank writes, and each line that it asks for, until one of both sides leaves.

    `read`: takes the prompt and returns the line; EOFError if the person leaves.
    """
    words: dict[str, Any] = {}
    while True:
        said = channel.ask(SAY, seconds=SAY_SECONDS + HEAR_SECONDS, **words, hear=HEAR_SECONDS)
        write(said.text)
        if said.over:
            return
        words = {}
        if said.ask is not None:
            with contextlib.suppress(EOFError):
                words = {"line": read(said.ask)}
            if not words:
                return
