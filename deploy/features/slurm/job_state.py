"""What Slurm shows of a job and of a node, and what its states and reasons mean.

The states are those of squeue(1), JOB STATE CODES; the reasons those of
https://slurm.schedmd.com/job_reason_codes.html
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from ...core.errors import MusterError
from .programs import ask, host_names

REASON_SECONDS = 3.0  # until Slurm shows why a job waits
MOST_NODES = 8  # of a job that Slurm is asked about
NEAR_SECONDS = 60.0  # from the moment when Slurm resumes a job to a failure that follows from its standstill
ALIVE = frozenset({"", "PENDING", "CONFIGURING", "RUNNING", "RESIZING", "SIGNALING", "STOPPED", "SUSPENDED"})
WAITING = (
    *("PENDING", "CONFIGURING", "EXPEDITING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
)
"""The states of a job that waits for its first start or for another one."""
FROZEN = ("SUSPENDED", "STOPPED")
"""States of a job whose processes Slurm has stopped by SIGSTOP."""
_ENDS = {
    **{"TimeLimit": "TIMEOUT", "InactiveLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "DeadLine": "DEADLINE"},
    **{"OutOfMemory": "OUT_OF_MEMORY", "NonZeroExitCode": "FAILED", "RaisedSignal": "FAILED"},
    **{"JobLaunchFailure": "FAILED", "SystemFailure": "FAILED"},
}
"""The end of a job that completes, by Slurm's reason."""
_NEVER = {
    "PartitionNodeLimit": "more nodes than the partition gives a job",
    "PartitionTimeLimit": "a time limit longer than that of the partition",
    "BadConstraints": "no node has what the options name",
    "DependencyNeverSatisfied": "the job that it depends on has failed",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the QOS is not valid",
}
"""Reasons to wait that do not end by themselves."""
_UNDECIDED = ("PENDING (None)", "PENDING (PartitionConfig)")
"""A job that Slurm has not looked at since its submission."""
_GONE = ("DOWN", "FAIL", "NOT_RESPONDING", "*")
"""Parts of the state of a node on which no process can run: sinfo(1), NODE STATE CODES."""


class Job(NamedTuple):
    """A job as `scontrol show job` shows it; without fields if Slurm does not have it, or does not answer."""

    fields: Mapping[str, str]

    @property
    def state(self) -> str:
        """`RUNNING`; `COMPLETING` until the last process has ended, also if it will start again."""
        return self.fields.get("JobState", "")

    @property
    def may_start_again(self) -> bool:
        """Whether Slurm may queue it again: its user or an admin allowed that."""
        return self.fields.get("Requeue") == "1"

    def starts_again(self, restarts: int) -> bool:
        """Whether Slurm has queued it again since its start number `restarts`.

        Slurm counts every way alike: a preemption, a failed node, `scontrol requeue`.
        """
        counted = self.fields.get("Restarts", "")
        return counted.isdecimal() and int(counted) > restarts

    @property
    def is_preempted(self) -> bool:
        """Whether Slurm took the hosts of this start for another job; times are in ISO 8601."""
        taken = self.fields.get("PreemptTime", "")
        return taken[:1].isdecimal() and taken >= self.fields.get("StartTime", "")

    def was_suspended(self, at: float) -> bool:
        """Whether the processes of the job did not run at about this time: `scontrol suspend`."""
        if self.state in FROZEN:
            return True
        with contextlib.suppress(ValueError):
            changed = datetime.datetime.fromisoformat(self.fields.get("SuspendTime", ""))
            return abs(changed.timestamp() - at) < NEAR_SECONDS
        return False

    def end(self, restarts: int) -> str:
        """`TIMEOUT (TimeLimit)`; empty if this start of the job has not ended.

        While it completes, Slurm shows no more than a reason: the end follows from it.
        """
        again = self.starts_again(restarts)
        if not again and self.state in ALIVE:
            return "PREEMPTED" if self.is_preempted else ""
        state = self.state
        if again or state == "COMPLETING":
            usual = "REQUEUED" if again else "CANCELLED"
            by_reason = _ENDS.get(re.split(r"\W", self._reason)[0], usual)
            state = "PREEMPTED" if self.is_preempted else by_reason
        return self.with_reason(state)

    def with_reason(self, state: str) -> str:
        """The state with Slurm's reason, if it gives one."""
        return state if self._reason in {"None", ""} else f"{state} ({self._reason})"

    @property
    def _reason(self) -> str:
        return self.fields.get("Reason", "None")


def shown(job: str) -> Job:
    """What Slurm shows of a job."""
    if not job:
        return Job({})
    try:
        return Job(dict(re.findall(r"(\w+)=(\S*)", ask("scontrol", "show", "job", "--oneliner", job))))
    except MusterError:
        return Job({})


def gres_of(job: str) -> dict[str, str]:
    """What Slurm gave a job on each node besides processors and memory: `gpu:a100:2,nvme:1`, or nothing.

    The details of a job have a part for nodes alike: `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1)`.
    """
    text = ask("scontrol", "show", "job", "--details", "--oneliner", job)
    groups = re.findall(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", text)
    named = ((host_names(nodes), re.sub(r"\([^)]*\)", "", gres)) for nodes, gres in groups)
    found = {name: gres for names, gres in named for name in names}
    return found if any(found.values()) else {}


def ended(job: str, restarts: int = 0) -> str:
    """Why Slurm ended the start number `restarts` of a job: `CANCELLED`, `TIMEOUT (TimeLimit)`, `REQUEUED`.

    Empty while it runs or if unknown. It does not wait for the final state, which Slurm shows when the
    agents, too, have ended.
    """
    return shown(job).end(restarts)


def outcome(job: str) -> str:
    """The end of a job of Slurm, from slurmctld, or later from the accounting; empty if neither has it."""
    found = shown(job)
    if found.state:
        return found.with_reason(found.state)
    try:
        return ask(
            "sacct", "--allocations", "--noheader", "--parsable2", "--format=State", "--jobs", job
        ).strip()
    except MusterError:
        return ""


def queued(job: str) -> str:
    """Slurm's state of a job that waits: `PENDING (Resources), expected at 2026-11-22T10:00:00`."""
    return _described(ask("squeue", "--noheader", "--jobs", job, "--format", "%T|%r|%S").strip())


def own_jobs() -> dict[str, str]:
    """The user's jobs that are not over, by Slurm's number: `PENDING (Resources)`, `RUNNING (None)`."""
    lines = ask("squeue", "--me", "--noheader", "--format", "%i %T|%r|%S").splitlines()
    return {job: _described(rest) for job, _, rest in (line.partition(" ") for line in lines)}


def _described(line: str) -> str:
    state, _, rest = line.partition("|")
    reason, _, start = rest.partition("|")
    expected = f", expected at {start}" if start and start != "N/A" and state == "PENDING" else ""
    return f"{state} ({reason}){expected}" if state else ""


def problems_of(job: str) -> list[str]:
    """What Slurm shows of a job that it did not start: its end, and its nodes that have a problem."""
    found = shown(job)
    state, nodes = found.end(0), found.fields.get("NodeList", "")
    states: dict[str, str] = {}
    with contextlib.suppress(MusterError):
        names = host_names(nodes) if nodes not in {"", "(null)"} else []
        states = {name: node_state(name) for name in names[:MOST_NODES]}
    wrong = [f"{name} is {node}" for name, node in states.items() if is_gone(node) or "DRAIN" in node]
    return [part for part in (state, *wrong) if part]


def why_never(job: str, described: str) -> str:
    """Why a job with this description of `queued` would wait forever; empty if it may start."""
    reason = re.match(r"PENDING \((\w+)\)", described)
    if not reason or reason[1] not in _NEVER or (reason[1] == "PartitionNodeLimit" and _may_fit(job)):
        return ""
    return f"{_NEVER[reason[1]]} ({reason[1]})"


def why_waits(job: str) -> str:
    """Why a job that was just submitted would wait forever; empty if it may start, or if unknown.

    Slurm gives the reason a moment after the submission: at first it is None or PartitionConfig.
    """
    deadline = time.monotonic() + REASON_SECONDS
    with contextlib.suppress(MusterError):
        while (described := queued(job)) in _UNDECIDED and time.monotonic() < deadline:
            time.sleep(0.2)
        return why_never(job, described)
    return ""


def _may_fit(job: str) -> bool:
    """Whether the job has as many nodes as its partition: those that are drained may come back."""
    fields = shown(job).fields
    nodes, partition = fields.get("NumNodes", "").partition("-")[0], fields.get("Partition", "")
    try:
        text = ask("scontrol", "show", "partition", "--oneliner", partition)
    except MusterError:
        return True
    limits = re.findall(r"\b(?:MaxNodes|TotalNodes)=(\d+)\b", text)
    return not (nodes.isdecimal() and limits) or int(nodes) <= min(map(int, limits))


def why_lost(job: str, restarts: int, host: str) -> str:
    """Slurm's reason for the end of an agent: the end of the job, or a failed node; empty for any other."""
    if state := ended(job, restarts):
        return f"Slurm ended the allocation {job}: {state}"
    state = node_state(host)
    return f"Slurm's state of the node: {state}" if is_gone(state) else ""


def is_gone(node: str) -> bool:
    """Whether Slurm's state of a node means that no process can run there."""
    return any(part in node.partition(" ")[0] for part in _GONE)


def node_state(name: str) -> str:
    """Slurm's state of a node: `DOWN`, `IDLE+DRAIN`, with its reason; empty if unknown."""
    try:
        text = ask("scontrol", "show", "node", "--oneliner", name)
    except MusterError:
        return ""
    fields = dict(re.findall(r"(?:^|\s)(State|Reason)=(.*?)(?=\s+\w+=|\s*$)", text))
    state, reason = fields.get("State", ""), fields.get("Reason", "")
    return f"{state} ({reason})" if reason else state
