"""The verdict: the result of a launch as a short block of text, which the launch prints last."""

from __future__ import annotations

from collections.abc import Iterator

from ..common.paths import JobPaths
from ..console.fold import fold, fold_names
from ..console.terminal import harmless
from ..console.text import count, size, span
from ..errors import lines_of
from ..launch import early
from ..launch.blame import LAUNCHER_SIGNALS
from ..launch.result import Failure, LaunchResult
from ..plan.launch_plan import HostPlan
from ..why import stragglers
from .run_folder import RunFolder

TAIL_LINES = 20


def verdict(result: LaunchResult, folder: RunFolder, page: str = "") -> str:
    """Which ranks ran where; or what failed first, its last lines, and where to read on.

    `page`: the name of the page in the run's folder, if one is made.
    """
    plan, failure = result.plan, result.failure
    seconds = result.ended - result.started
    what = f"{count(len(plan.ranks), 'rank')} on {count(len(plan.hosts), 'host')}, {plan.spec.launcher}"
    if failure is None:
        lines = [f"DONE    {what}, {seconds:.1f} s", *(f"        {_ranks_of(host)}" for host in plan.hosts)]
        lines += [f"        out: {line}" for line in _outputs(result)]
    else:
        lines = [f"FAILED  {failure.headline if plan.hosts else failure.reason}"]
        if result.why:
            lines += [f"        why: {line}" for line in (result.why.headline, result.why.cause)]
        lines += [f"        why: {line}" for line in early.lines(result.early, result.started)]
        lines += [f"        | {harmless(line.rstrip())}" for line in failure.tail[-TAIL_LINES:]]
        lines += [f"        after {seconds:.1f} s of {what}"] if plan.hosts else []
        if others := _others(result, failure):
            lines.append(f"        ended with it: {others}")
    lines += [f"        slow: {line}" for line in stragglers.lines(result.late, result.ended, ended=True)]
    left = ((host, f"{number} processes could not be ended") for host, number in result.left.items())
    lines += [f"        {line}" for line in lines_of(left)]
    lines += [f"        note: {note}" for note in result.notes]
    lines.append(f"        logs: {_where(failure, folder)}")
    if failure and failure.kind == "rank" and failure.reason in LAUNCHER_SIGNALS and result.launcher_said:
        lines.append(f"        and why {plan.spec.launcher} ended it: {folder.logs}/launcher@*.log")
    lines += [f"        page: {folder.path / page}"] if page else []
    if failure is None and result.last_line:
        lines.append(harmless(result.last_line))
    return "\n".join(["", *lines])


def _ranks_of(host: HostPlan) -> str:
    return f"{host.host.name}: {span([place.rank for place in host.ranks])}"


def _outputs(result: LaunchResult) -> Iterator[str]:
    """`3 files, 12 MiB in ~/.muster/jobs/JOB/out on node[1-3]`, one line for hosts with equal outputs."""
    place = JobPaths.of("~", result.plan.spec.job).out
    for names, left in fold(result.outputs.items()):
        more = "more than " if left.more else ""
        yield f"{more}{count(left.files, 'file')}, {size(left.bytes)} in {place} on {fold_names(names)}"


def _others(result: LaunchResult, failure: Failure) -> str:
    """The ranks that did not end well after the first failure: `ranks 0-3,5`."""
    ended_well = {rank for rank, end in result.ends.items() if end.code == 0}
    return span([place.rank for place in result.plan.ranks if place.rank not in {failure.rank} | ended_well])


def _where(failure: Failure | None, folder: RunFolder) -> str:
    if failure and failure.rank is not None and failure.host:
        for stream in ("err", "out"):
            path = folder.log_of(failure.rank, failure.host, stream)
            if path.is_file() and path.stat().st_size:
                return str(path)
    return str(folder.logs)
