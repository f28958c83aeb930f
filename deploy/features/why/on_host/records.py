"""Reads the records of this host's ranks (in_rank/muster_ring.py), and torch's own record of collectives.

Both work without the rank's interpreter: the ring is a file, and torch's server has its own threads. A record
is input of the user's program, which is not trusted: every size is bounded.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import struct
from typing import Any

from ....core.agent.ranks import ask_rank
from ....core.wire.frames import Frame
from ..in_rank.muster_ring import COUNT, ENTRIES, ENTRY, FIRST, SLOT

MOST_ENTRIES = 96  # of each rank and each kind of record
MOST_TRACE = 1 << 23  # bytes of an answer of torch's server
TRACE_SECONDS = 4.0
_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32"}
_BYTES = {"Double": 8, "Long": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}


def read_ring(path: str, most: int = MOST_ENTRIES) -> Frame:
    """The head, the groups and the last entries of a rank's record; `missing`: why there is none."""
    try:
        with open(path, "rb") as file:
            content = file.read(SLOT * (FIRST + ENTRIES))
    except FileNotFoundError:
        return {"missing": "it has not brought its ranks together with torch.distributed"}
    except OSError as error:
        return {"missing": str(error)}
    groups = [group for at in range(SLOT, SLOT * FIRST, SLOT) if (group := _group(content[at : at + SLOT]))]
    slots = (_noted(content[at : at + SLOT]) for at in range(SLOT * FIRST, len(content), SLOT))
    entries = sorted((slot for slot in slots if slot), key=lambda slot: slot["number"])
    head = _slot(content[:SLOT]) or {}
    return {"pid": head.get("pid", 0), "groups": groups, "entries": _latest(entries, most)}


def _latest(entries: list[Frame], most: int) -> list[Frame]:
    """The last entries, and of every group the last: a group that is used often hides no other."""
    last = {(entry["group"], entry["kind"]): entry["number"] for entry in entries}
    kept = {*last.values(), *(entry["number"] for entry in entries[-most:])}
    return [entry for entry in entries if entry["number"] in kept]


def _group(slot: bytes) -> Frame | None:
    """The group in a slot, with the number of its collectives so far; None for an empty slot."""
    group = _slot(slot[COUNT.size :])
    return group and {**group, "count": COUNT.unpack_from(slot)[0]}


def _noted(slot: bytes) -> Frame | None:
    """The collective or message in a slot; None for an empty slot."""
    with contextlib.suppress(struct.error):
        number, count, at, end, state, wait = ENTRY.unpack_from(slot)
        times = {"at": at, "end": end, "wait": wait, "state": state.decode("latin-1")}
        text = _slot(slot[ENTRY.size :]) if number else None
        return text and {**text, **times, "number": number, "seq": count}
    return None


def _slot(text: bytes) -> Frame | None:
    """The object in one slot; None for an empty one, and for one that is being written."""
    with contextlib.suppress(ValueError):
        slot = json.loads(text.partition(b"\n")[0].rstrip(b"\0"))
        return slot if isinstance(slot, dict) else None
    return None


def read_trace(path: str, most: int = MOST_ENTRIES, seconds: float = TRACE_SECONDS) -> list[Frame]:
    """The last collectives in torch's own record, as entries of the kind `torch`; none where it has none.

    `seconds`: how long to wait for torch's server; that of a rank that is stopped does not answer.
    """
    if not os.path.exists(path):
        return []
    try:
        with contextlib.closing(_Local(path, seconds)) as connection:
            connection.request("POST", "/handler/fr_trace_json")
            trace = json.loads(connection.getresponse().read(MOST_TRACE))
        entries = [entry for entry in trace["entries"] if not entry["is_p2p"]]
        return [_entry(number, entry) for number, entry in enumerate(entries)][-most:]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError):
        return []  # a rank that is stopped, or a torch that records nothing of this backend


def read_stack(path: str, code: str) -> list[list[Any]]:
    """The Python stack of a rank, from its console (in_rank/muster_console.py); none without an answer."""
    try:
        frames = ask_rank(path, {"do": "stack", "code": code}, TRACE_SECONDS)["frames"]
        return [
            [str(function)[:400], str(file)[:400], int(line), bool(own)]
            for function, file, line, own in frames
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def _entry(number: int, entry: dict[str, Any]) -> Frame:
    elements = sum(math.prod(sizes) for sizes in entry["input_sizes"])
    dtype = (entry.get("input_dtypes") or [""])[0]
    ended = entry["retired"] or entry["state"] == "completed"
    return {
        "state": "d" if ended else "i",
        "end": (entry.get("time_discovered_completed_ns") or 0) / 1e9,
        "number": number,
        "group": str(entry["process_group"][0]),
        "kind": "torch",
        "seq": entry["collective_seq_id"],
        "at": entry["time_created_ns"] / 1e9,
        "op": entry["profiling_name"].rpartition(":")[2].lstrip("_"),
        "dtype": _TYPES.get(dtype, dtype.lower()),
        "elements": elements,
        "bytes": elements * _BYTES.get(dtype, 4),
    }


class _Local(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path, self._seconds = path, seconds

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._seconds)
        self.sock.connect(self._path)
