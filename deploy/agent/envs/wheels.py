"""Wheels on their way to this host, and from here to others."""

from __future__ import annotations

from ..transfer.transfers import Transfers


class Wheels(Transfers):
    """Takes wheels, serves them and fetches them, as layers of an image go (agent/transfer/transfers.py)."""

    do_wheel_serve, do_wheel_take = Transfers.serve, Transfers.take
    do_wheel_complete, do_wheel_pull = Transfers.complete, Transfers.pull
