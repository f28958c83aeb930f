"""The programs of the agent that a launch writes into a job's folder, as texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..plan.planner import Tools

AGENT = Path(__file__).parents[1] / "agent"
IN_EVERY_RANK = ("sitecustomize.py", "muster_over.py")
"""The other files of in_rank/ are for ranks of a job with `--record`."""
CONTAINER = ("container/keeper.py", "container/enter.py", "processes.py")


def tools(*, inside: bool = False) -> Tools:
    """The programs of a job; `inside`: with those of containers."""
    job, in_rank = AGENT / "job", AGENT / "job" / "in_rank"
    recorders = sorted({path.name for path in in_rank.glob("muster_*.py")} - {*IN_EVERY_RANK})
    return Tools(
        rank=(job / "rank.py").read_text(),
        rank_log=(job / "rank_log.py").read_text(),
        rsh=(job / "rsh.py").read_text(),
        in_rank=_texts(in_rank, IN_EVERY_RANK),
        recorder=_texts(in_rank, recorders),
        container=_texts(AGENT, CONTAINER) if inside else {},
    )


def _texts(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {Path(name).name: (folder / name).read_text() for name in names}
