"""The record of a rank: a small file with a ring of the collectives and messages that the rank has begun.

The file is memory that is shared with the host's agent, so it can be read while the rank waits, is stopped or
is gone. It has a head, a slot for each group with the number of its collectives, and the ring. Each slot is
one JSON object and a newline, in that of a group after its number, and in the ring after ENTRY; the rest of
it is undefined. Packed numbers take a third of the time that their text takes, and training waits for them.
features/why/on_host/records.py reads it.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import itertools
import json
import mmap
import struct
import time
from collections.abc import Sequence
from typing import Any

RECORDER = "<the recorder of muster>"
"""The file name of the frames between the program and torch, in tracebacks and stacks."""
SLOT = 512
GROUPS, ENTRIES = 64, 256
FIRST = 1 + GROUPS
"""The first slot of the ring."""
COUNT = struct.Struct("<Q")
ENTRY = struct.Struct("<QQddcd")
"""Its number, from 1 on, and that in its group; when it began and its call ended; its state; since when the
rank waits for it. Times are seconds since the epoch, 0 for never."""
END, WAIT = struct.Struct("<dc"), struct.Struct("<cd")
AT_END, AT_WAIT = 24, 32
MOST_NAME = 64  # bytes of the name of a group
MOST_SPANS = 180  # characters of the list of a group's ranks: the room in a slot
OMITTED = "?"
"""In place of a longer list: then the members are the ranks that have recorded the group."""
WAITED, BEGUN, DONE, FAILED = b"i", b"a", b"d", b"f"
"""The rank is in the call, or waits for it; the call returned and the work continues; complete; an error."""


class Ring:
    """The file. Its writer is this process; a child that it forks writes nothing."""

    def __init__(self, path: str) -> None:
        size = SLOT * (FIRST + ENTRIES)
        with open(path, "w+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
        self._numbers, self._newest = itertools.count(1), 0
        self.groups: dict[tuple[str, str], Group] = {}

    def head(self, text: dict[str, Any]) -> None:
        """Write the process that records."""
        self._put(0, json.dumps(text).encode() + b"\n")

    def group(self, kind: str, name: str, ranks: Sequence[int]) -> Group:
        """The group of this name; `kind`: whether it counts calls, messages or a backend's collectives."""
        group = self.groups.get((kind, name))
        if group is None:
            slot = len(self.groups) + 1
            group = self.groups[kind, name] = Group(slot if slot <= GROUPS else 0, kind, name, ranks)
            if group.slot:
                self._put(group.slot, COUNT.pack(0) + group.text)
        return group

    def begin(self, group: Group, what: bytes) -> int:
        """Write the next collective or message of a group; returns its number from 1 on, for `end`."""
        # Few steps: in a program that makes many small calls, other work has emptied the caches each time.
        group.count = count = group.count + 1
        if group.slot:
            COUNT.pack_into(self._memory, group.slot * SLOT, count)
        self._newest = number = next(self._numbers)
        text = ENTRY.pack(number, count, time.time(), 0.0, WAITED, 0.0) + group.entry + what
        if len(text) <= SLOT:
            at = (FIRST + number % ENTRIES) * SLOT
            self._memory[at : at + len(text)] = text
        return number

    def end(self, entry: int, state: bytes) -> None:
        """Write the state of a collective or message whose call has returned."""
        if at := self._place(entry):
            END.pack_into(self._memory, at + AT_END, time.time(), state)

    def wait(self, entry: int, state: bytes) -> None:
        """Write that the rank now waits for an entry whose call had returned; later, the state after that."""
        if at := self._place(entry):
            WAIT.pack_into(self._memory, at + AT_WAIT, state, time.time())

    def _place(self, entry: int) -> int:
        """Where an entry is; 0 if a later one has taken its slot."""
        taken = self._newest - entry >= ENTRIES
        return 0 if taken else (FIRST + entry % ENTRIES) * SLOT

    def _put(self, slot: int, text: bytes) -> None:
        if len(text) <= SLOT:
            at = slot * SLOT
            self._memory[at : at + len(text)] = text


class Group:
    """A process group, with the number of collectives that this rank has begun in it."""

    def __init__(self, slot: int, kind: str, name: str, ranks: Sequence[int]) -> None:
        self.slot, self.count = slot, 0
        self.entry = b'{"group":%s,"kind":%s,' % (quoted(name, MOST_NAME), json.dumps(kind).encode())
        spans = _spans(ranks)
        members = json.dumps(spans if len(spans) <= MOST_SPANS else OMITTED).encode()
        self.text = b'%s"ranks":%s}\n' % (self.entry, members)


def quoted(text: str, most: int, *, last: bool = False) -> bytes:
    """The first or last characters of a text, as JSON with at most so many bytes between the quotes.

    Whole characters are left out: a slot that is too long is not written at all.
    """
    kept: list[bytes] = []
    for character in reversed(text) if last else text:
        part = json.dumps(character, ensure_ascii=False)[1:-1].encode(errors="backslashreplace")
        most -= len(part)
        if most < 0:
            break
        kept.append(part)
    return b'"%s"' % b"".join(reversed(kept) if last else kept)


def _spans(ranks: Sequence[int]) -> str:
    """`0-3,6,8-126/2`, as one text: a part with a step has every second rank, and so on."""
    parts, at = [], 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 0
        end = at + 1
        while step > 0 and end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        if end - at < (2 if step == 1 else 3):
            parts.append(str(ranks[at]))
            at += 1
        else:
            parts.append(f"{ranks[at]}-{ranks[end - 1]}" + (f"/{step}" if step > 1 else ""))
            at = end
    return ",".join(parts)
