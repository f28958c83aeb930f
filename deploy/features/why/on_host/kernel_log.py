"""The kernel's messages since a time, read without root where the host allows it.

From /dev/kmsg, else from the journal, which members of the groups adm and systemd-journal may read. Where
neither may be read the answer says so, because an empty one would mean that nothing happened.

Sources of the kinds: the kernel (drivers/, mm/oom_kill.c, kernel/hung_task.c, fs/), and NVIDIA's list of Xid
errors (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

from ....core.agent.supervisor import JobHandler
from ....core.wire.frames import Frame

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
            {"ago": ago, "kind": kind.name, "meaning": kind.meaning_in(text), "text": text[:LONGEST]}
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


# -- kinds --


class Kind(NamedTuple):
    """A kind of message."""

    name: str
    pattern: re.Pattern[str]
    meaning: str

    def meaning_in(self, text: str) -> str:
        """The meaning of a message of this kind: that of its number, for a known error of an NVIDIA GPU."""
        match = self.pattern.search(text)
        return _XIDS.get(int(match[1][:6]), self.meaning) if match and self.name == "xid" else self.meaning


_NAME = ".{1,15}"
"""The name of a process, which its user chooses, spaces too (TASK_COMM_LEN of the kernel)."""
_OF_PROCESS = re.compile(
    rf"{_NAME}( invoked oom-killer|: page allocation |\[\d+\]| ?\(\d+\))"
    r"|\[[ \d]+\] |(oom_reaper|oom-kill|task|traps|audit):|Out of memory|Memory cgroup|CPU: \d+ |INFO: task "
)
"""Messages with the name of a process: it may look like a message of another kind."""
_PROCESSES = (
    (
        "oom",
        r"^(Out of memory|Memory cgroup out of memory): Killed process \d+",
        "the out-of-memory killer ended a process",
    ),
    (
        "hung",
        rf"^INFO: task {_NAME}:\d+ blocked for more than \d+ seconds",
        "a process waits for a disk or device",
    ),
    (
        "crash",
        rf"^{_NAME}\[\d+\]: segfault at|^traps: {_NAME}\[\d+\] (trap|general)",
        "a process crashed in native code",
    ),
)
_SOURCES = (
    # NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    ("xid", r"NVRM: Xid \(\S+\): (\d+)", "an error of the GPU or its driver"),
    ("amdgpu", r"amdgpu\b.*(ring \S+ timeout|GPU reset begin|uncorrectable)", "an error of the GPU"),
    (
        "memory",
        r"\[Hardware Error\]|EDAC \S+: \d+ (UE|CE)|Machine check",
        "an error of memory or processor; replace the module that it names",
    ),
    ("pcie", r"AER: .*(Uncorrect|Fatal|Multiple)", "an error on PCIe; look at the slot and the card"),
    (
        "link",
        r"(NIC Link is|[Ll]ink(?: is)?) [Dd]own(?=$|\.$|, reason)|port \d+ .*link state.*DOWN",
        "a network link went down; look at cable and switch",
    ),
    (
        "disk",
        r"I/O error, dev \S+|Buffer I/O error on dev|nvme \S+: I/O .*timeout|critical medium error",
        "a disk failed to read or write; replace it",
    ),
    (
        "filesystem",
        r"EXT4-fs error|XFS \(\S+\): .*([Cc]orruption|shut ?down|I/O error)|BTRFS error"
        r"|Remounting filesystem read-only",
        "a damaged file system, which may be read-only now",
    ),
    (
        "server",
        r"nfs: server \S+ not responding|Lustre(Error)?: .*(evicted|Connection .* was lost|timed out)",
        "a file server did not answer",
    ),
    (
        "lockup",
        r"BUG: soft lockup|NMI watchdog: Watchdog detected hard LOCKUP|rcu_\w+ (self-)?detected stall",
        "a processor made no progress",
    ),
    (
        "heat",
        r"temperature above threshold|critical temperature reached",
        "the processor is too hot, and slower; look at fans and air",
    ),
)
_KINDS = tuple(Kind(name, re.compile(pattern), meaning) for name, pattern, meaning in _SOURCES)
_KINDS_OF_PROCESSES = tuple(Kind(name, re.compile(pattern), meaning) for name, pattern, meaning in _PROCESSES)

_PROGRAM = "often an error of the program"
_XIDS = {
    13: f"an illegal instruction or address; {_PROGRAM}",
    31: f"a page fault on the GPU; {_PROGRAM}",
    43: f"the GPU ended the work of a process; {_PROGRAM}",
    45: "the work of a process was removed, after another error or its end",
    48: "memory error that could not be corrected; restart the host, and replace the GPU if it comes back",
    63: "a memory row was replaced by a spare one; it is active after a reset",
    64: "a bad memory row could not be replaced; replace the GPU",
    74: "an error on NVLink; look at the link, and reset the GPU",
    79: "the GPU has fallen off the bus; power the host off and on, and replace the GPU if it comes back",
    94: "memory error that ended one process only",
    95: "memory error that may have reached all processes; reset the GPU",
    119: "the GPU's own processor (GSP) timed out; reset the GPU",
    120: "an error of the GPU's own processor (GSP); reset the GPU",
}


def kind_of(text: str) -> Kind | None:
    """The kind of a message; None for one that explains nothing."""
    kinds = _KINDS_OF_PROCESSES if _OF_PROCESS.match(text) else _KINDS
    return next((kind for kind in kinds if kind.pattern.search(text)), None)


# -- processes that were killed for lack of memory --


class OtherKills(JobHandler):
    """Answers how many processes below the ranks were killed."""

    def do_memory_kills(self, request: Frame, payload: bytes) -> Frame:
        """The kills that explain the end of no rank, and the limit."""
        return self.job.ranks.other_kills()
