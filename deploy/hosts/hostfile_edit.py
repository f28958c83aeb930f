"""Adds hosts to the text of a hosts file. All present lines stay the same, byte for byte. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ..console.fold import fold_names
from ..errors import UsageError
from . import hostfile, hostfile_text, name_patterns
from .hostfile import LOCAL_NAMES, Host

HEADER = "# The hosts of a launch, one a line. The first one is the head. slots: the number of ranks there.\n"


def lines_of(entries: Sequence[tuple[Host, str]]) -> list[str]:
    """A line for each host with its comment. Neighbours that differ only in their number share a line."""
    lines = []
    for (settings, comment), group in groupby(entries, lambda entry: (_settings(entry[0]), entry[1])):
        for pattern in _folded([host.name for host, _ in group]):
            line = " ".join([pattern, *settings])
            lines.append(f"{line:<35} # {comment}" if comment else line)
    return lines


def _settings(host: Host) -> tuple[str, ...]:
    values = {"slots": host.slots, "user": host.user, "port": host.port, "addr": host.addr}
    return tuple(f"{key}={value}" for key, value in values.items() if value is not None)


def _folded(names: list[str]) -> list[str]:
    """Ranges that expand to these names in this order, which is the order of ranks; else the names."""
    patterns = name_patterns.patterns(fold_names(names))
    expanded = [host.name for host in hostfile.parse("\n".join(patterns))]
    return patterns if expanded == names else names


def appended(content: bytes, lines: Sequence[str]) -> bytes:
    """The content of a hosts file with more lines at its end, with its own line ends."""
    end = "\r\n" if b"\r\n" in content else "\n"
    start = content or HEADER.encode()
    gap = end.encode() if not start.endswith(b"\n") else b""
    return start + gap + "".join(f"{line}{end}" for line in lines).encode()


def without_local(content: bytes, source: str) -> bytes:
    """The content with the line of localhost as a comment: it must be the only host."""
    text = content.decode("utf-8", "surrogateescape")
    read = hostfile_text.without_comments(text.removeprefix("\ufeff"), source)[0]
    kept = []
    for line, bare in zip(text.splitlines(keepends=True), read.splitlines(), strict=True):
        tokens = hostfile_text.tokens(bare)
        if tokens and tokens[0][1].lower() in LOCAL_NAMES:
            if "/*" in line or "*/" in line:
                raise UsageError(f"{source}: localhost must be the only host; remove its line first")
            line = f"# {line}"  # noqa: PLW2901  # the line in its new form
        kept.append(line)
    return "".join(kept).encode("utf-8", "surrogateescape")
