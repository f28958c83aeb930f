"""Frames: one JSON object a line; `"size": N` in it announces N raw bytes that follow the line."""

from __future__ import annotations

import json
from typing import Any, Protocol

Frame = dict[str, Any]


class Readable(Protocol):
    """A byte stream to read frames from."""

    def readline(self, size: int = -1, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """A byte stream to write frames to."""

    def write(self, content: bytes, /) -> object: ...
    def flush(self) -> object: ...


def read_frame(stream: Readable, most: int = -1) -> tuple[Frame, bytes] | None:
    """The next frame and its payload; None at the end of the stream, ValueError for what is no frame.

    `most`: the longest line and payload to take, in bytes, from an end that is not trusted; -1 for any.
    """
    line = stream.readline(most)
    if not line.endswith(b"\n"):
        if len(line) == most:
            raise ValueError(f"a frame is longer than {most} bytes")
        return None
    frame = json.loads(line)
    if not isinstance(frame, dict):
        raise ValueError("a frame is a JSON object")
    size = frame.get("size", 0)
    if not isinstance(size, int) or size < 0 or 0 <= most < size:
        raise ValueError(f"a payload of {size} bytes")
    payload = stream.read(size) if size else b""
    return None if len(payload) < size else (frame, payload)


def write_frame(stream: Writable, frame: Frame, payload: bytes = b"") -> None:
    """Write one frame. Strings may hold undecodable bytes as lone surrogates: JSON escapes keep them."""
    if "size" in frame:
        raise ValueError("size is what announces a payload; no frame has one of its own")
    if payload:
        frame = {**frame, "size": len(payload)}
    stream.write(json.dumps(frame).encode() + b"\n")
    if payload:
        stream.write(
            payload
        )  # by itself: many hosts are sent the same one at once, and no copy is made for each
    stream.flush()
