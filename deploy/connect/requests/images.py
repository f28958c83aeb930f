"""What is asked while an image goes to hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...decode import AtMost
from ...hosts.bounds import Count, DiffId, Name
from .request import FilesServed, Nothing, Request


@dataclass(frozen=True)
class ImageThere:
    """The image that a host has under a name, if any, and how many layers of the wanted image it has."""

    id: Name
    created: Name
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)]
    common: Count


IMAGE = Request("image", ImageThere)
IMAGE_SERVE = Request("image_serve", FilesServed)
IMAGE_TAKE = Request("image_take", Nothing)
IMAGE_COMPLETE = Request("image_complete", Nothing)
IMAGE_PULL = Request("image_pull", Nothing)
IMAGE_FORGET = Request("image_forget", Nothing)
IMAGE_LOAD = Request("image_load", Nothing)
