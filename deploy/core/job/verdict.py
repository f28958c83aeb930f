"""The verdict: the result of a launch as a short block of text, which the launch prints last."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import MusterError, lines_of
from ..hosts.stuck_processes import REMEDY, not_ended
from ..plan.launch_plan import HostPlan, LaunchPlan
from ..plan.spec import LaunchSpec
from ..text.fold import fold, fold_names
from ..text.terminal import harmless
from ..text.text import QUOTE, clip, count, duration, ranges, span
from ..timings import INNER, OF_THE_END
from ..wire.paths import MusterPaths
from .cause import early_lines
from .job_record import caller_of_stop
from .restart_policy import first_alike
from .result import TERMINATED, Failure, LaunchResult, interruption, stopped_by
from .run_folder import RunFolder
from .stages import of_rank

TAIL_LINES = 20
MOST_FAILURES, LONGEST_REASON = 4, 200
"""Earlier attempts whose failure is named, and the characters of their last line."""
MOST_BEHIND = 4
LOOK = "shows whether it answers now, and how to continue an agent that a signal has stopped"
LEAST_SECONDS, LEAST_SHARE = 2.0, 0.1
"""A part is named from this time on, and from this share of the whole time."""


def verdict(result: LaunchResult, folder: RunFolder, page: str = "") -> str:
    """The hosts of the ranks; or the first failure, its last lines, and the path of the logs.

    `page`: the name of the page in the run's folder, if one is made.
    """
    plan, failure = result.plan, result.failure
    time_taken, parts = _time_taken(result)
    what = f"{count(len(plan.ranks), 'rank')} on {count(len(plan.hosts), 'host')}, {plan.spec.launcher}"
    if failure is None:
        lines = [
            f"DONE    {what}, {time_taken}{parts}",
            *(f"        {_ranks_of(host)}" for host in plan.hosts),
        ]
    else:
        lines = [_first_line(result, failure)]
        causes = [*result.causes, *early_lines(result.early, result.started)]
        lines += [f"        why: {line}" for line in causes]
        first = first_alike(result, result.earlier)
        tail = first.failure.tail if first and first.failure else failure.tail
        lines += [f"{QUOTE}{harmless(line.rstrip())}" for line in tail[-TAIL_LINES:]]
        if failure.silent:
            lines.append(f"        look: muster check --include {failure.host} {LOOK}")
        lines += [f"        after {time_taken} of {what}{parts}"] if plan.hosts else []
        if others := _others(result, failure):
            lines.append(f"        ended with it: {others}")
        lines += [f"        before that: {line}" for line in _earlier(result)]
    lines += [f"        kept: {line}" for line in _kept(plan)]
    lines += [f"        {line}" for finding in result.findings for line in finding.lines(result)]
    left = ((host, f"{not_ended(processes)}; {REMEDY}") for host, processes in result.left.items())
    lines += [f"        {line}" for line in lines_of(left)]
    lines += [f"        {line}" for line in killed_lines(result)]
    lines += [f"        left out: {line}" for line in lines_of(result.left_out.items())]
    lines += [f"        note: {note}" for note in result.notes]
    lines.append(f"        logs: {_where(failure, folder)}")
    if failure and failure.terminated and result.launcher_printed:
        lines.append(f"        and why {plan.spec.launcher} ended it: {folder.logs}/launcher@*.log")
    lines += [f"        page: {folder.path / page}"] if page else []
    if failure is None and result.last_line:
        lines.append(harmless(result.last_line))
    return "\n".join(["", *lines])


def _first_line(result: LaunchResult, failure: Failure) -> str:
    if result.state == "stopped":
        hosts = "; the job was ended on every host" if result.plan.hosts else ""
        return f"STOPPED by {failure.reason}{hosts}"
    return f"FAILED  {failure.headline if result.plan.hosts else failure.reason}"


def killed_lines(result: LaunchResult) -> Iterator[str]:
    """`killed 30 s after SIGTERM: ranks 0-1 on node1`; `left behind: sh of rank 0 on node1, ended ...`."""
    programs: dict[tuple[float, str], list[int]] = {}
    for host, ended in result.killed.items():
        for process in ended:
            if process.program and process.rank is not None:
                programs.setdefault((round(process.seconds, 1), host), []).append(process.rank)
    for (seconds, host), ranks in programs.items():
        who = f"{span(sorted(ranks))} on {host}"
        more = "; --grace SECONDS gives more time" if seconds >= result.plan.spec.grace else ""
        yield f"killed {_duration(seconds)} after SIGTERM: {who}{more}"
    behind = [(host, process) for host, ended in result.killed.items() for process in ended]
    behind = [(host, process) for host, process in behind if not process.program]
    for host, process in behind[:MOST_BEHIND]:
        who = harmless(f"{process.name}{of_rank(process)} on {host}")
        yield f"left behind: {who} (process {process.pid}), ended after {_duration(process.seconds)}"
    if len(behind) > MOST_BEHIND:
        yield f"left behind: {len(behind) - MOST_BEHIND} more, in result.json"


def _time_taken(result: LaunchResult) -> tuple[str, str]:
    """The time from the command to the end of the job; and `: 1 min 4 s delivery, 3.0 s ranks`.

    The parts are empty if the ranks took most of the time.
    """
    ran = result.ended - result.started
    parts = {part.name: part for part in result.timings if part.name not in OF_THE_END}
    if "delivery" not in parts:
        return _duration(ran), ""
    total = parts["delivery"].ended - min(part.began for part in parts.values()) + ran
    before = [part for part in parts.values() if part.ended <= parts["delivery"].ended]
    took = {part.name: part.ended - part.began for part in before if part.name not in INNER}
    least = max(LEAST_SECONDS, LEAST_SHARE * total)
    long = [f"{_duration(seconds)} {name}" for name, seconds in took.items() if seconds >= least]
    return _duration(total), f": {', '.join([*long, f'{_duration(ran)} ranks'])}" if long else ""


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _ranks_of(host: HostPlan) -> str:
    return f"{host.host.name}: {span([placed.rank for placed in host.ranks])}"


def _kept(plan: LaunchPlan) -> Iterator[str]:
    """`checkpoints in ~/.muster/kept/project-1a2b3c4d on node[1-3]`."""
    spec = plan.spec
    if spec.keep and plan.hosts:
        folder = MusterPaths.of_home("~").kept(spec.project)
        names = fold_names(host.host.name for host in plan.hosts)
        yield f"{', '.join(spec.keep)} in {folder} on {names}"


def _others(result: LaunchResult, failure: Failure) -> str:
    """The ranks that did not end well after the first failure: `ranks 0-3,5`."""
    ended_well = {rank for rank, end in result.ends.items() if end.code == 0}
    return span(
        [placed.rank for placed in result.plan.ranks if placed.rank not in {failure.rank} | ended_well]
    )


def _earlier(result: LaunchResult) -> Iterator[str]:
    """`attempts 0-1: rank 3 on node2: exit status 1 (ImportError: no module named x)`, for each failure."""
    failures = [
        (attempt.plan.spec.attempt, _in_a_line(attempt.failure))
        for attempt in result.earlier
        if attempt.failure
    ]
    groups = sorted(fold(failures))
    for numbers, failure in groups[:MOST_FAILURES]:
        yield f"{'attempt' if len(numbers) == 1 else 'attempts'} {ranges(numbers)}: {failure}"
    if len(groups) > MOST_FAILURES:
        yield f"{len(groups) - MOST_FAILURES} other failures, in result.json"


def _in_a_line(failure: Failure) -> str:
    """The failure with its last line, which names the exception."""
    last = next((line.strip() for line in reversed(failure.tail) if line.strip()), "")
    of_rank = failure.kind == "rank" and last and last not in failure.reason
    return f"{failure.headline} ({clip(harmless(last), LONGEST_REASON)})" if of_rank else failure.headline


def _where(failure: Failure | None, folder: RunFolder) -> str:
    if failure and failure.rank is not None and failure.host:
        for stream in ("err", "out"):
            path = folder.log_of(failure.rank, failure.host, stream)
            if path.is_file() and path.stat().st_size:
                return str(path)
    return str(folder.logs)


def end_unstarted(folder: Path, kind: str, reason: str, status: int) -> LaunchResult:
    """Write the result of a job whose ranks never started; returns it, with a plan without hosts."""
    record = json.loads((folder / "job.json").read_text())
    spec = LaunchSpec(**{name: record[name] for name in ("job", "launcher", "attempt")})
    plan = LaunchPlan(spec, (), "")
    failure = Failure(kind, reason, status, at=time.time())
    result = LaunchResult(plan, record["started"], failure.at, failure, {})
    run = RunFolder(folder.parent, folder.name, detached=True)
    run.finish(result, verdict(result, run))
    return result


def why_unstarted(error: MusterError | KeyboardInterrupt, folder: Path) -> tuple[str, str, int]:
    """The kind, reason and exit status of the failure of a job that this error kept from starting."""
    if isinstance(error, MusterError):
        return "driver", str(error), error.exit_status or 1
    if by := caller_of_stop(folder):
        return "stopped", stopped_by(by), TERMINATED
    return "interrupted", f"{interruption(error, 0.0).reason} before it started", TERMINATED
