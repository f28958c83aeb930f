"""Wheels on their way to this host, and from here to others."""

from __future__ import annotations

from ..image.passing import Passing


class Wheels(Passing):
    """Takes wheels, serves them and fetches them, as layers of an image go (agent/image/passing.py)."""

    do_wheel_serve, do_wheel_take = Passing.serve, Passing.take
    do_wheel_complete, do_wheel_pull = Passing.complete, Passing.pull
