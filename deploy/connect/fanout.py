"""The same on many hosts at once; what fails names its hosts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import MusterError, UnfitError
from .channel import Channel
from .cluster import CONNECTIONS_AT_ONCE, Cluster

_Found = TypeVar("_Found")


def on_every(cluster: Cluster, act: Callable[[Channel], _Found]) -> dict[str, _Found]:
    """What comes of something on every host at once; `UnfitError` names all those where it failed."""
    if not cluster.channels:
        return {}
    problems: list[tuple[str, str]] = []

    def attempt(channel: Channel) -> tuple[str, _Found] | None:
        try:
            return channel.host, act(channel)
        except MusterError as error:
            problems.append((channel.host, error.reason))
        except OSError as error:  # of this machine
            problems.append(
                (channel.host, ": ".join(filter(None, (error.filename, error.strerror or str(error)))))
            )
        return None

    with ThreadPoolExecutor(min(len(cluster.channels), CONNECTIONS_AT_ONCE)) as pool:
        found = dict(done for done in pool.map(attempt, cluster.channels.values()) if done)
    if problems:
        raise UnfitError(sorted(problems))
    return found
