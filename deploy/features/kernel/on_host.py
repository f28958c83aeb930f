"""The kernel's messages since a time, read without root where the host allows it.

From /dev/kmsg, else from the journal, which members of the groups adm and systemd-journal may read. Where
neither may be read the answer says so, because an empty one would mean that nothing happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

from ...core.wire.frames import Frame
from .wire import kind_of

KMSG = "/dev/kmsg"
READ_SECONDS, MOST_LINES, MOST_MESSAGES, LONGEST = 2.0, 1 << 18, 32, 300
RECORD = 8192  # bytes: the kernel gives one whole record for a read, at most so long
DRIFT_SECONDS = 5.0
"""The clock of the messages follows no time server. After months it may be off by more: then the times are
wrong by as much, and the first messages of a job may be missed."""
UNREAD = "needs root, the group adm or systemd-journal, or kernel.dmesg_restrict=0"


class KernelLog:
    """Answers the request for the kernel's messages."""

    def do_kernel_messages(self, request: Frame, payload: bytes) -> Frame:
        """The messages of a known kind of the last seconds; `unread`: why there are none to read."""
        seconds, unread = float(request["seconds"]) + DRIFT_SECONDS, ""
        try:
            descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                lines = [*read_kmsg(descriptor, seconds)]
            finally:
                os.close(descriptor)
        except OSError:
            lines, unread = _of_journal(seconds)
        messages = [
            {"ago": ago, "kind": kind.name, "text": text[:LONGEST]}
            for ago, text in lines
            if (kind := kind_of(text))
        ]
        return {"messages": messages[-MOST_MESSAGES:], "unread": unread}


def read_kmsg(descriptor: int, seconds: float) -> Iterator[tuple[float, str]]:
    """Each message with the seconds since then. Format: Documentation/ABI/testing/dev-kmsg of the kernel."""
    began = time.monotonic()
    for _ in range(MOST_LINES):
        try:
            record = os.read(descriptor, RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:  # it was overwritten; the next read gives the oldest one that is left
            continue
        if not record or time.monotonic() - began > READ_SECONDS:
            return
        head, _, text = record.decode(errors="replace").partition(";")
        ago = time.monotonic() - int(head.split(",")[2]) / 1e6
        if ago <= seconds:
            yield max(0.0, ago), text.partition("\n")[0]


def _of_journal(seconds: float) -> tuple[list[tuple[float, str]], str]:
    now = time.time()
    since = f"--since=@{now - seconds:.0f}"
    words = ("journalctl", "--dmesg", "--quiet", "--no-pager", "--output=json", "--lines=2000", since)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * READ_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return [], UNREAD
    lines = []
    for line in done.stdout.splitlines():
        try:
            entry = json.loads(line)
            lines.append((max(0.0, now - int(entry["__REALTIME_TIMESTAMP"]) / 1e6), str(entry["MESSAGE"])))
        except (ValueError, LookupError, TypeError):
            continue
    return lines, "" if lines or (not done.returncode and _may_read_journal()) else UNREAD


def _may_read_journal() -> bool:
    """Whether an empty answer means that nothing happened: journalctl hides what others may read."""
    import grp  # not on every host

    groups = set()
    for name in ("adm", "systemd-journal", "wheel"):
        try:
            groups.add(grp.getgrnam(name).gr_gid)
        except KeyError:
            continue
    return os.geteuid() == 0 or not groups.isdisjoint([*os.getgroups(), os.getegid()])
