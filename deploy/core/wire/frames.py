"""Frames: one JSON object a line; `"size": N` in it announces N raw bytes that follow the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

Frame = dict[str, Any]
# A bound on bytes does not bound memory: an empty object has two bytes on the line and 64 in memory. So the
# number of `{`, `[` and `,` in a line has a bound too: each value but the first comes with one of them.
MOST_VALUES = 1 << 19


class Readable(Protocol):
    """A byte stream to read frames from."""

    def readline(self, size: int = -1, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """A byte stream to write frames to."""

    def write(self, content: bytes, /) -> object: ...
    def flush(self) -> object: ...


def read_frame(
    stream: Readable, most: int = -1, room: Callable[[Frame], int] | None = None
) -> tuple[Frame, bytes] | None:
    """The next frame and its payload; None at the end of the stream, ValueError for a malformed frame.

    For a sender that is not trusted: a line has at most `most` bytes and MOST_VALUES values; -1 for any.
    `room`: returns the most bytes that may follow a frame; without it, any number may follow.
    """
    line = stream.readline(most)
    if not line.endswith(b"\n"):
        if len(line) == most:
            raise ValueError(f"a line longer than {most} bytes")
        return None
    if most >= 0 and values_in(line) > MOST_VALUES:
        raise ValueError(f"a line of more than {MOST_VALUES} values")
    try:
        frame = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("values nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"a line that is no JSON, from character {error.pos + 1} on") from None
    except UnicodeDecodeError:
        raise ValueError("a line that is no text") from None
    if not isinstance(frame, dict):
        raise ValueError("no JSON object")
    size = frame.get("size", 0)
    if type(size) is not int or size < 0 or (room and size > room(frame)):
        raise ValueError(f"a payload of {str(size)[:40]} bytes")
    payload = stream.read(size) if size else b""
    return None if len(payload) < size else (frame, payload)


def write_frame(stream: Writable, frame: Frame, payload: bytes = b"") -> None:
    """Write one frame. Strings may hold undecodable bytes as lone surrogates: JSON escapes keep them."""
    if "size" in frame:
        raise ValueError("size announces a payload, and no frame may set it")
    if payload:
        frame = {**frame, "size": len(payload)}
    stream.write(json.dumps(frame).encode() + b"\n")
    if payload:
        # A separate write: many hosts get the same payload at once, and no copy is made for each.
        stream.write(payload)
    stream.flush()


def values_in(line: bytes) -> int:
    """A bound on the values of a JSON text, without the first; commas in strings count as well."""
    return line.count(b"{") + line.count(b"[") + line.count(b",")


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")
