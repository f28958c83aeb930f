"""Keeps the imports of the ranks ready on every host, for the next attempt (`--preload`)."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import Future

from ..common.clock import now
from ..connect.channel import Channel
from ..connect.requests.launch import PRELOAD, Preloaded
from ..console.text import size
from ..errors import MusterError
from ..launch.job_events import LONGEST_TEXT, JobEvent, OnEvent
from ..plan.spec import LaunchSpec

EVERY_SECONDS = 1.0
"""A host begins when the modules of a rank have not changed from one time to the next."""


class Preloads:
    """Asks every host of an attempt, until it is ready or says why it will not be."""

    def __init__(self, spec: LaunchSpec, channels: Mapping[str, Channel], on_event: OnEvent) -> None:
        self._spec, self._on_event = spec, on_event
        self._channels = dict(channels) if spec.preload else {}
        self._asked = time.monotonic()
        self._answers: dict[str, Future[Preloaded]] = {}
        self._looked = spec.attempt == 0
        """Whether the ranks of this attempt are known to have started with or without their imports."""

    def turn(self) -> None:
        """Handle the answers that have come, and ask again from time to time."""
        for host, future in [*self._answers.items()]:
            if future.done():
                del self._answers[host]
                with contextlib.suppress(MusterError):  # the loop notices a host that is lost
                    self._take(host, future.result())
        if self._channels and not self._answers and time.monotonic() - self._asked >= EVERY_SECONDS:
            self._asked = time.monotonic()
            last = self._spec.attempt >= self._spec.max_restarts
            self._answers = {host: each.post(PRELOAD, last=last) for host, each in self._channels.items()}

    def _take(self, host: str, answer: Preloaded) -> None:
        if answer.state not in {"ready", "cold"}:
            return
        self._channels.pop(host, None)
        if self._spec.attempt and answer.cold:
            why = ", ".join(sorted(answer.cold))
            self._note(host, f"ranks did their imports themselves: {why}")
        elif self._spec.attempt and answer.released:
            self._note(host, "ranks started with their imports done")
        elif answer.state == "ready":
            self._note(host, f"ready for the next attempt: {answer.modules} modules, {size(answer.memory)}")
        else:
            self._note(host, f"the next attempt does its imports itself: {answer.why}")

    def _note(self, host: str, text: str) -> None:
        event = JobEvent(
            at=now(), type="host.preloaded", job=self._spec.job, attempt=self._spec.attempt, host=host
        )
        self._on_event(dataclasses.replace(event, text=text[:LONGEST_TEXT]))
