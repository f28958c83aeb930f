"""What is asked about the image in which ranks are to run, and its container."""

from __future__ import annotations

from ...hosts.containers import ContainerThere
from .request import Nothing, Request

CONTAINER = Request("container", ContainerThere)
CONTAINER_START = Request("container_start", Nothing)
