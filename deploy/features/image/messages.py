"""Requests while an image goes to hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost
from ...core.hosts.bounds import Count, DiffId, Name


@dataclass(frozen=True)
class PresentImage:
    """The image that a host has under a name, if any, and how many layers of the wanted image it has."""

    id: Name
    created: Name
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)]
    common: Count


IMAGE = Request("image", PresentImage)
IMAGE_LOAD = Request("image_load", Nothing)
