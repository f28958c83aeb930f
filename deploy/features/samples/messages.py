"""The request for samples every few seconds, and the reports that answer it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...core.connect.reports import Report
from ...core.connect.requests.request import Nothing, Request
from ...core.decode import MALFORMED
from ...core.hosts.host_sample import HostSample, of_json
from ...core.wire.frames import Frame


@dataclass(frozen=True)
class Sampled(Report, event="sample"):
    """A sample of a host and its ranks; None for a malformed one: the host loses only this sample."""

    sample: HostSample | None

    @classmethod
    def of(cls, frame: Frame) -> Sampled:
        """The sample in a frame: JSON in a text, so that no value in it is a protocol error.

        The driver adds its time and host (features/samples/driver.py).
        """
        try:
            return cls(of_json({**json.loads(frame["sample"]), "at": 0, "host": "", "attempt": 0}))
        except MALFORMED:
            return cls(None)


WATCH = Request("watch", Nothing)
