"""The kernel's messages that may explain why a job failed: how each kind looks, its meaning and remedy.

Sources: the kernel (drivers/, mm/oom_kill.c, kernel/hung_task.c, fs/), and NVIDIA's list of Xid errors
(docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of message."""

    name: str
    pattern: re.Pattern[str]
    meaning: str


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
KINDS = (*_KINDS, *_KINDS_OF_PROCESSES)

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


def meaning_of(kind: str, text: str) -> str:
    """The meaning of a message of this kind; empty for an unknown kind."""
    known = next((each for each in KINDS if each.name == kind), None)
    if known is None:
        return ""
    match = known.pattern.search(text)
    return _XIDS.get(int(match[1][:6]), known.meaning) if match and kind == "xid" else known.meaning
