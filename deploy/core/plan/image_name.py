"""The value of `--image`, of a launch and of the commands about images."""

from __future__ import annotations

import re

from ..errors import UsageError


def image_name(image: str, other: str = "") -> str:
    """The image; `UsageError` for an invalid name. `other`: another form that is valid."""
    if not re.fullmatch(r"[\w/][\w./:@+~-]*", image):
        raise UsageError(f"--image {image!r}: write NAME:TAG or NAME@sha256:...{other and f', {other}'}")
    return image
