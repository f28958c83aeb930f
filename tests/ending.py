"""The end of a job on a host, as the driver asks for it: again and again, until it is over."""

from __future__ import annotations

from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.requests import STOP, Stopping


def end(channel: Channel, grace: float = 60.0, patience: float = 0.0) -> Stopping:
    """The last answer of the host."""
    while not (stopping := channel.ask(STOP, grace=grace, patience=patience, seconds=60)).over:
        pass
    return stopping
