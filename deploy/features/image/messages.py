"""Requests and reports while an image goes to hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.reports import Report
from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost, lazy_dataclass
from ...core.hosts.bounds import Count, DiffId, Name, Text


@dataclass(frozen=True)
class PresentImage:
    """The image that a host has under a name, if any, and how many layers of the wanted image it has."""

    id: Name
    created: Name
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)]
    common: Count


@lazy_dataclass(frozen=True)
class ImageLoaded(Report, event="image-loaded"):
    """The engine of a host has an image, or why it does not."""

    id: Name = ""
    created: Name = ""
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)] = ()
    error: Text = ""


IMAGE = Request("image", PresentImage)
IMAGE_LOAD = Request("image_load", Nothing)
