"""A host whose agent lies: started in place of its Python, it stands between the driver and an honest agent.

LIE names a request and a lie, `facts:nested`: everything passes until that request, which is answered by the
lie. `LIE=greeting:LIE` lies instead of the greeting. The lies are below; each is what goes to the driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

LIE = os.environ.get("LIE", ":")
ASKED = os.environ.get("ASKED", os.devnull)
"""A file that gets a line for each request."""
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
Lie = Callable[[Any], Iterator[bytes]]


def line(**frame: Any) -> bytes:
    return json.dumps(frame).encode() + b"\n"


def forever(chunk: bytes) -> Iterator[bytes]:
    while True:
        yield chunk


def silence() -> Iterator[bytes]:
    while True:
        time.sleep(0.5)
        yield b""


def of_all(what: Any) -> dict[str, Any]:
    return {str(rank): what for rank in range(6)}


LIES: dict[str, Lie] = {
    # no frames
    "garbage": lambda number: iter([b"\xff\xfe\0garbage\n"]),
    "list": lambda number: iter([b"[1]\n"]),
    "nested": lambda number: iter([b"[" * 1_000_000 + b"\n"]),
    "nested-objects": lambda number: iter([b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"]),
    "endless-line": lambda number: forever(b"x" * (1 << 16)),
    "many-values": lambda number: iter([b'{"reply": %d, "x": [' % number, b"[]," * 2_500_000, b"[]]}\n"]),
    "huge-payload": lambda number: iter([line(reply=number, size=1 << 40)]),
    "payload-unasked": lambda number: iter([line(event="output", size=1 << 26)]),
    "negative-payload": lambda number: iter([line(reply=number, size=-1)]),
    # answers
    "unasked": lambda number: iter([line(reply=number + 1000)]),
    "reply-of-wrong-type": lambda number: iter([line(reply={"a": 1})]),
    "empty": lambda number: iter([line(reply=number, event="x", surprise=[1])]),
    "error-of-wrong-type": lambda number: iter([line(reply=number, error={"a": 1})]),
    "escape": lambda number: iter([line(reply=number, error=ESCAPE)]),
    "infinity": lambda number: iter([b'{"reply": %d, "time": Infinity}\n' % number]),
    # reports
    "unknown-report": lambda number: iter([line(event=ESCAPE)]),
    "report-of-wrong-type": lambda number: iter([line(event={"a": []})]),
    "code-of-256": lambda number: iter([line(event="ran", code=256, cut=0, timed_out=False)]),
    "flood-of-reports": lambda number: forever(line(event="launcher", stream="out", text="x" * 60_000)),
    "flood-of-answers": lambda number: forever(line(reply=77777)),
    "silence": lambda number: silence(),
    "end": lambda number: iter([]),
}


EVIDENCE = {"now": 1.0, "process": {"pid": 7, "state": "S"}, "frames": [["lie", "lie.py", 1, True]]}
VALUE = {"value": "a lie"}
CLAIMS: dict[str, Lie] = {
    "all-evidence": lambda number: iter([line(reply=number, ranks=of_all(EVIDENCE))]),
    "all-values": lambda number: iter([line(reply=number, recorded=True, ranks=of_all(VALUE))]),
    "all-arrivals": lambda number: iter([line(reply=number, ranks=of_all({}))]),
}
"""Answers for the ranks of other hosts too."""
BUSY: dict[str, Lie] = {"busy": lambda number: busy()}


def busy() -> Iterator[bytes]:
    """It reports without end that it is at work."""
    while True:
        time.sleep(0.2)
        yield line(event="busy", cpu=7.5)


def main() -> None:
    word, _, name = LIE.partition(":")
    if word == "greeting":
        tell({**LIES, **CLAIMS, **BUSY}[name](0))
        sys.exit()
    honest = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert honest.stdin is not None
    assert honest.stdout is not None
    greeted, lying = threading.Event(), threading.Event()
    threading.Thread(target=pass_on, args=(honest.stdout, greeted, lying), daemon=True).start()
    inbox = sys.stdin.buffer
    honest.stdin.write(inbox.readline())  # its modules
    honest.stdin.flush()
    while text := inbox.readline():
        request = json.loads(text)
        with Path(ASKED).open("a") as file:
            file.write(f"{request['do']}\n")
        if word in (request["do"], "*"):
            greeted.wait()
            time.sleep(0.2)  # for what else the agent has said before
            lying.set()
            tell({**LIES, **CLAIMS, **BUSY}[name](request["id"]))
            break
        honest.stdin.write(text + inbox.read(request.get("size", 0)))
        honest.stdin.flush()
    while inbox.read(1 << 16):  # until the driver cuts the connection
        pass
    honest.stdin.close()
    honest.wait()


def pass_on(stream: IO[bytes], greeted: threading.Event, lying: threading.Event) -> None:
    while (chunk := stream.read1(1 << 16)) and not lying.is_set():  # type: ignore[attr-defined]  # buffered
        write(chunk)
        greeted.set()


def tell(lie: Iterator[bytes]) -> None:
    for chunk in lie:
        write(chunk)


def write(chunk: bytes) -> None:
    try:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
