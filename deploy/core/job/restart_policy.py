"""Decides whether a failed job starts again, and on which hosts. Pure: `Job` executes the decision.

A host leaves the job if it fails, if a process of the attempt cannot be ended there, or if ranks fail there
twice in a row and on no other host. A lost host may be back: it is asked again before the job ends for too
few hosts.

It recognises a failure that repeats itself. A failure before the first step recurs at every start: a module
that is missing, an argument that is wrong. A failure after the first step may recur too, but the attempt made
progress, unless it comes at the same step. A rank whose peer is gone, or that a user killed, is no evidence
about the program.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from ..decode import lazy_dataclass
from ..hosts.hostfile import Host
from ..hosts.stuck_processes import StuckProcesses, not_ended
from ..text.fold import fold_names
from ..text.printed import figures_of
from ..text.text import count
from .cause import misses_a_peer
from .result import Failure, LaunchResult, RankExit

CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
"""Signals by which a program ends itself."""
SIGNALLED = 128
PREEMPTED = 75
"""The exit status of a training that was asked to end, and saved (docs/reference/exit-statuses.md)."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


Mark: TypeAlias = tuple[str, ...]
"""What repeats itself: an exception with its file and line; without a traceback, the reason and last line."""


def early_failure(result: LaunchResult) -> Mark:
    """The failure of an attempt that made no step; empty for any other end."""
    failure = result.failure
    if failure is None or result.stepped:
        return ()
    if failure.kind == "launcher":
        was_killed = failure.exit_status > SIGNALLED
        return () if was_killed else (failure.reason, *_last_line(failure.tail))
    end = None if failure.rank is None else result.ends.get(failure.rank)
    if failure.kind != "rank" or misses_a_peer(failure.tail) or (end and not _is_own(end)):
        return ()
    return _exception(failure.tail) or (failure.reason, *_last_line(failure.tail))


def failed_step(result: LaunchResult) -> tuple[int, Mark] | None:
    """The step that rank 0 printed last, and the exception that ended a rank after it; None if unknown."""
    failure, step = result.failure, figures_of(result.last_line).step
    if failure is None or failure.kind != "rank" or step is None or misses_a_peer(failure.tail):
        return None
    mark = _exception(failure.tail)
    return (step, mark) if result.stepped and mark else None


def first_alike(result: LaunchResult, earlier: Sequence[LaunchResult]) -> LaunchResult | None:
    """The first of the earlier attempts whose failure this result repeats."""
    mark = early_failure(result)
    return next((each for each in earlier if mark and early_failure(each) == mark), None)


def failed_host(result: LaunchResult) -> str | None:
    """The only host on which ranks failed; None if ranks failed on several hosts, or none did.

    A rank that a signal from outside ended counts too: a program of that host may end processes.
    """
    failure = result.failure
    if failure is None or failure.exit_status == PREEMPTED or failure.host is None:
        return None
    if failure.kind == "launcher":
        return failure.host if failure.host != result.plan.hosts[0].host.name else None
    if failure.rank is None or misses_a_peer(failure.tail):
        return None
    others = {end.placed.host for end in result.ends.values() if _is_own(end)}
    return failure.host if others <= {failure.host} else None


def _is_own(end: RankExit) -> bool:
    """Whether a rank failed on its own: not by a signal from outside, nor for a peer that is gone."""
    if end.terminated:
        return False
    if end.code < 0 and not end.why:  # `why`: the kernel killed it for lack of memory
        return -end.code in CRASHES
    return end.code != 0 and not misses_a_peer(end.tail)


def _exception(tail: Sequence[str]) -> Mark:
    """The exception and the line of the last traceback, as `("ImportError", "train.py", "2")`."""
    frames = [(number, found) for number, line in enumerate(tail) if (found := _FRAME.search(line))]
    if not frames:
        return ()
    number, frame = frames[-1]
    after = (found for line in tail[number + 1 :] if (found := _EXCEPTION.match(line)))
    kind = next((found.group() for found in after), "")
    return kind, frame.group(1).rpartition("/")[2], frame.group(2)


def _last_line(tail: Sequence[str]) -> Mark:
    """The last line, without its numbers: ports and process numbers differ each time."""
    lines = [line.strip() for line in tail if line.strip()]
    return (_NUMBERS.sub("#", lines[-1]),) if lines else ()


FINAL_STATUS = 2  # a mistake in what the user wrote
BACKOFF_SECONDS = (1.0, 2.0)
NETWORK_SECONDS, RETRY_SECONDS = 120.0, 3.0  # how long a restart waits for the network of this machine
ASK_SECONDS = 15.0
"""How long lost hosts are asked again before the job ends for too few hosts."""
ALONE = "ranks failed there twice in a row, and on no other host"
TWICE = "it failed twice in the same way before its first step"
NOT_STUCK: Mapping[str, StuckProcesses] = MappingProxyType({})
AT_A_STEP = 3
"""The job ends when it has failed so often at the same step with the same exception."""


@dataclass(frozen=True)
class Policy:
    """How often a job may start again, on how few hosts, and what its attempts have shown so far."""

    max_restarts: int
    min_hosts: int
    hosts: tuple[Host, ...] = ()
    """All hosts of the job, in their order."""
    early: tuple[Mark, ...] = ()
    """The failures before the first step, since the last attempt that made one."""
    at_steps: tuple[tuple[int, Mark], ...] = ()
    """The steps at which an exception ended an attempt, each with that exception."""
    alone: str | None = None
    """The host on which alone ranks failed when they failed last."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The hosts that have left the job, each with the reason."""
    away: frozenset[str] = frozenset()
    """The hosts that were lost, and may be back."""
    asked: float | None = None
    """When lost hosts were first asked again, if too few hosts are left."""

    def awaits(self, hosts: Sequence[Host], unreached: Mapping[str, str], at: float) -> bool:
        """Whether to ask the same hosts again: too few of them can be reached, and more may be back."""
        too_few = len(hosts) - len(unreached) < self.min_hosts
        return too_few and self.asked is not None and at < self.asked + ASK_SECONDS


@lazy_dataclass(frozen=True)
class Decision:
    """The hosts of the next attempt, none for no attempt, a line for the user, and the next policy."""

    hosts: tuple[Host, ...]
    message: str
    policy: Policy

    @property
    def again(self) -> bool:
        return bool(self.hosts)


def after(result: LaunchResult, hosts: Sequence[Host], attempt: int, policy: Policy, at: float) -> Decision:
    """Decide on the next attempt after this end of one on these hosts. The first attempt has number 0."""
    if result.stepped:
        policy = replace(policy, early=())
    early, alone = early_failure(result), failed_host(result)
    if at_step := failed_step(result):
        policy = replace(policy, at_steps=(*policy.at_steps, at_step))
        if policy.max_restarts and policy.at_steps.count(at_step) >= AT_A_STEP:
            step, (kind, *_) = at_step
            often = f"{kind or 'the same failure'} at step {step} for the {AT_A_STEP}rd time"
            return Decision((), f"no restart: {often}", policy)
    return decide(result.failure, hosts, attempt, policy, early=early, alone=alone, stuck=result.left, at=at)


def with_returned(
    hosts: Sequence[Host], answering: Collection[str], policy: Policy
) -> tuple[tuple[Host, ...], Policy]:
    """These hosts, then those that were lost and answer again; and the policy from now on.

    They come last, so that the head stays: it may have the only checkpoint.
    """
    hosts_with_ranks = {host.name for host in hosts}
    back = tuple(host for host in policy.hosts if host.name in policy.away & {*answering} - hosts_with_ranks)
    names = {host.name for host in back}
    left_out = {host: why for host, why in policy.left_out.items() if host not in names}
    return (*hosts, *back), replace(policy, away=policy.away - names, left_out=left_out)


def decide(
    failure: Failure | None,
    hosts: Sequence[Host],
    attempt: int,
    policy: Policy,
    *,
    early: Mark = (),
    alone: str | None = None,
    stuck: Mapping[str, StuckProcesses] = NOT_STUCK,
    at: float = 0.0,
) -> Decision:
    """Decide on the next attempt. `early`: the failure, if it came before the first step.

    `alone`: the host on which alone ranks failed. `stuck`: the hosts with processes that cannot be ended.
    A host that fails leaves the job. The host of a failed rank stays once: the failure may not recur.
    """
    if failure is None or policy.max_restarts == 0 or _is_final(failure):
        return Decision((), "", policy)
    if attempt >= policy.max_restarts:
        return Decision((), f"no restart: that was the last of {count(attempt, 'restart')}", policy)
    earlier, alone_before = policy.early, policy.alone
    policy = replace(policy, asked=None, early=(*earlier, early) if early else earlier)
    if failure.kind == "launcher" or failure.rank is not None:
        policy = replace(policy, alone=alone)
    twice = alone if alone == alone_before and len(hosts) > 1 else None
    if early in earlier and not twice:
        return Decision((), f"no restart: {TWICE}", policy)
    stays = twice if len(hosts) <= policy.min_hosts and not early else None
    leaves = None if stays else twice
    gone = failure.host if failure.kind == "host" else None
    lost = {host: not_ended(processes) for host, processes in stuck.items()}
    lost |= {gone: failure.reason} if gone else {leaves: ALONE} if leaves else {}
    if lost:
        back = {host for host, left in stuck.items() if all(process.ends_soon for process in left)}
        back |= {gone} - stuck.keys() if gone and not failure.distrusted else set[str]()
        cause = "" if gone else failure.headline
        return without(lost, hosts, attempt, policy, at, back=back - {leaves}, cause=cause)
    more = f"; {stays}: {ALONE}, but too few hosts are left without it" if stays else ""
    return Decision(tuple(hosts), f"{failure.headline}{more}; {_next(hosts, attempt, policy)}", policy)


def _is_final(failure: Failure) -> bool:
    return failure.final or (failure.kind == "launcher" and failure.exit_status == FINAL_STATUS)


def without(
    lost: Mapping[str, str],
    hosts: Sequence[Host],
    attempt: int,
    policy: Policy,
    at: float,
    *,
    back: Collection[str] | None = None,
    cause: str = "",
) -> Decision:
    """The next attempt without these hosts, each with its reason; no attempt if too few hosts are left.

    `back`: those of them that may be back, by default all. Before the job ends for too few hosts, they are
    asked again. `cause`: the failure, if it is not one of the reasons.
    """
    left = tuple(host for host in hosts if host.name not in lost)
    named = (f"{name}: {reason}" for name, reason in lost.items())
    reasons = "; ".join(filter(None, (cause, *named)))
    away = (policy.away - lost.keys()).union(lost if back is None else back)
    policy = replace(policy, away=away)
    if len(left) >= policy.min_hosts:
        policy = replace(policy, left_out={**policy.left_out, **lost})
        return Decision(left, f"{reasons}; {_next(left, attempt, policy)}", policy)
    few = f"{count(len(left), 'host')} left, --min-hosts {policy.min_hosts}"
    asked = at if policy.asked is None else policy.asked
    again = tuple(host for host in policy.hosts if host in left or host.name in away)
    if len(again) < policy.min_hosts or at >= asked + ASK_SECONDS:
        return Decision((), f"no restart: {few} ({reasons})", policy)
    names = fold_names([host.name for host in again if host not in left])
    message = f"{reasons}; {few}, so {names} is asked again; {_next(again, attempt, policy)}"
    out = {host: why for host, why in policy.left_out.items() if host not in away}
    return Decision(again, message, replace(policy, away=frozenset(), asked=asked, left_out=out))


def awaits_network(failure: Failure | None, unreached: Mapping[str, str], at: float) -> bool:
    """Whether to try the same hosts again: this machine had lost its network, which may return."""
    return (
        failure is not None
        and failure.kind in {"network", "driver"}  # a machine that was suspended may need its network too
        and len(unreached) > 1
        and at < failure.at + NETWORK_SECONDS
    )


def _next(hosts: Sequence[Host], attempt: int, policy: Policy) -> str:
    names = ", ".join(host.name for host in hosts)
    return f"restart {attempt + 1} of {policy.max_restarts} on {names}"


def pause(result: LaunchResult, hosts: Sequence[Host], attempt: int) -> float:
    """Seconds to wait after this end of an attempt, before the next one on these hosts.

    None after a step: the program works, and the hosts that failed have left. A host that was lost, the
    network of this machine, or the cause of a quick failure may need a moment.
    """
    failure = result.failure
    if failure and result.stepped and failure.kind in {"rank", "launcher", "host"}:
        lost = failure.host if failure.kind == "host" else None
        if all(host.name != lost for host in hosts):
            return 0.0
    return BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
