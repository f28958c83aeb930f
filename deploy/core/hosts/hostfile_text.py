"""The text of a hosts file, as Open MPI reads it: comments of three kinds, and spaces around `=`."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import Problem, UsageError
from ..text.text import nearest
from ..wire.files import open_regular

MOST_BYTES = 1 << 24
_LINE = r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"  # a character at which str.splitlines does not split
_COMMENT = re.compile(rf"(?:#|//){_LINE}*|/\*(?s:.*?)(?P<end>\*/|\Z)")
_KEY_AND_VALUE = re.compile(r"[^\s=]+(?:\s*=\s*(?:[^\s=]+(?![^\s=]|\s*=))?)?|\S+")
_UNDECODED = re.compile("[\udc80-\udcff]")  # by surrogateescape


def load(path: Path) -> str:
    """The text of a file. Bytes that are not UTF-8 are kept, because a comment may contain them."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such hosts file{_similar(path) or _remedy(str(path))}") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory, not a hosts file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; a hosts file has one line a host")
    if b"\0" in data:
        raise UsageError(f"{path}: is not a text file; a hosts file has one line a host: 'node1 slots=4'")
    return data.decode("utf-8-sig", "surrogateescape")


def _similar(path: Path) -> str:
    """`; did you mean ...?` with a file beside a missing one; empty if none has a similar name."""
    try:
        return nearest(path.name, [each.name for each in path.parent.iterdir() if each.is_file()])
    except OSError:
        return ""


def _remedy(path: str) -> str:
    """The remedy for a missing hosts file; its path may be a list of hosts, as mpirun accepts it."""
    parts = [re.fullmatch(r"([A-Za-z0-9_][\w.-]*)(?::(\d{1,4}))?", part) for part in path.split(",")]
    hosts = [part for part in parts if part]
    if len(hosts) < len(parts) or not (len(hosts) > 1 or hosts[0][2]):
        return "; `muster init` writes an example with one line for each host"
    line = f"{hosts[0][1]} slots={hosts[0][2] or 1}"
    names = ",".join(host[1] for host in hosts)
    return f"; write a file with one line for each host: '{line}'; --include {names} takes some of its hosts"


def without_comments(text: str, source: str) -> tuple[str, list[Problem]]:
    """The text with a space for each character of a comment, and a problem for a comment without an end."""
    problems = []

    def blank(comment: re.Match[str]) -> str:
        if comment["end"] == "":
            line, column = _position(text, comment.start())
            problems.append(Problem(source, line, column, "this comment has no end: write */ after it"))
        return "".join(part if part.isspace() else " " for part in comment[0])

    return _COMMENT.sub(blank, text), problems


def _position(text: str, index: int) -> tuple[int, int]:
    lines = (text[:index] + "x").splitlines()
    return len(lines), len(lines[-1])


def tokens(line: str) -> list[tuple[int, str]]:
    """The tokens of a line, each with its column. `slots = 4` is a single token."""
    return [(match.start() + 1, re.sub(r"\s*=\s*", "=", match[0])) for match in _KEY_AND_VALUE.finditer(line)]


def undecoded(line: str) -> tuple[int, str] | None:
    """The first byte of a line that is not UTF-8: its column and its number."""
    match = _UNDECODED.search(line)
    return (match.start() + 1, f"0x{ord(match[0]) - 0xDC00:02x}") if match else None
