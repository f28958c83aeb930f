"""Keeps the imports of the ranks ready on every host, for the next attempt (`--preload`)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Literal

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.requests import Request
from ...core.decode import AtMost, lazy_dataclass
from ...core.errors import MusterError
from ...core.hosts.bounds import Bytes, Count, Text
from ...core.job.events import LONGEST_TEXT, JobEvent, Said
from ...core.job.feature import Attempt, Feature, Start
from ...core.job.planning import rank_programs, tools
from ...core.plan.launch_plan import Contribution, RemoteFile
from ...core.text.fold import fold, fold_names
from ...core.text.text import size
from ...core.wire.clock import now
from ...core.wire.paths import JobPaths


@lazy_dataclass(frozen=True)
class Preloaded:
    """How far a host is with the imports for the next attempt; `why`: why it will not have them.

    Of the ranks of this attempt, `released` have started with them, and `cold` without, by the reason.
    """

    state: Literal["waiting", "importing", "ready", "cold"]
    why: Text
    memory: Bytes
    modules: Count
    released: Count
    cold: Annotated[Mapping[Text, Count], AtMost(1 << 12)]


PRELOAD = Request("preload", Preloaded)
EVERY_SECONDS = 1.0
"""A host begins when the modules of a rank have not changed from one time to the next."""


class Preload(Feature):
    """Asks every host of an attempt, until it is ready or says why it will not be."""

    def __init__(self) -> None:
        self._channels = dict[str, Channel]()
        """The hosts that are not ready yet."""
        self._asked = 0.0
        self._answers: dict[str, Future[Preloaded]] = {}
        self._news: list[tuple[str, str]] = []  # hosts, each with its answer, to print together

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Let each rank start from the imports that its host has ready (on_host/rank_start.py)."""
        here, facts = Path(__file__).parent, cluster.facts
        texts = {"rank.py": (here / "on_host" / "rank_start.py").read_text(), "wrapper.py": tools().rank}
        folders = {host: JobPaths.of(facts[host].home, start.spec.job).programs for host in cluster.channels}
        return {
            host: Contribution(
                in_rank=rank_programs(here),
                files=tuple(RemoteFile(f"{folder}/{name}", 0o600, text) for name, text in texts.items()),
            )
            for host, folder in folders.items()
        }

    def begins(self, attempt: Attempt) -> None:
        """Its hosts may have preloaded imports for this attempt, and will for the next one."""
        self._channels = dict(attempt.cluster.channels)
        self._asked, self._answers, self._news = time.monotonic(), {}, []

    def turn(self, attempt: Attempt) -> None:
        """Take the answers so far, and ask again from time to time."""
        spec = attempt.plan.spec
        for host, future in [*self._answers.items()]:
            if future.done():
                del self._answers[host]
                with contextlib.suppress(MusterError):  # the loop notices a host that is lost
                    self._take(attempt, host, future.result())
        if self._news and not self._answers:
            for hosts, text in fold(self._news):
                attempt.emit(Said(f"{fold_names(hosts)}: {text}"))
            self._news.clear()
        if self._channels and not self._answers and time.monotonic() - self._asked >= EVERY_SECONDS:
            self._asked = time.monotonic()
            last = spec.attempt >= spec.max_restarts
            self._answers = {host: each.post(PRELOAD, last=last) for host, each in self._channels.items()}

    def _take(self, attempt: Attempt, host: str, answer: Preloaded) -> None:
        if answer.state not in {"ready", "cold"}:
            return
        self._channels.pop(host, None)
        spec, ready = attempt.plan.spec, ""
        if answer.cold:
            text = f"ranks did their imports themselves: {', '.join(sorted(answer.cold))}"
        elif answer.released:
            text = "ranks started with their imports done"
        elif spec.attempt >= spec.max_restarts:
            return
        elif answer.state == "ready":
            text = "the next attempt starts with its imports done"
            ready = f" ({answer.modules} modules, {size(answer.memory)})"
        else:
            text = f"the next attempt does its imports itself: {answer.why}"
        self._news.append((host, text[:LONGEST_TEXT]))
        event = JobEvent(at=now(), type="host.preloaded", job=spec.job, attempt=spec.attempt, host=host)
        attempt.emit(dataclasses.replace(event, text=f"{text}{ready}"[:LONGEST_TEXT]))
