"""An agent whose Python is replaced while its job runs, as by an upgrade: it carries the job to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pytest

from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.reports import LauncherLine
from muster.deploy.core.connect.requests import PING, PREPARE, START, STORE
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.features.samples.driver import WATCH, Sampled
from muster.deploy.features.why.messages import ARRIVALS, WHY
from muster.deploy.features.written_files.driver import OUTPUTS
from tests.ending import end
from tests.processes import is_alive
from tests.replaced import ReplacedPython

Kind = TypeVar("Kind")


def test_an_agent_carries_a_job_to_its_end_though_its_python_was_replaced(tmp_path: Path) -> None:
    python, events = ReplacedPython(tmp_path / "python"), Inbox()
    channel = Channel("here", LocalPipe(str(python.executable)), events)

    def next_event(kind: type[Kind]) -> Kind:
        while not isinstance(report := events.get(timeout=60).report, kind):
            pass
        return report

    try:
        folder = str(tmp_path / "jobs" / "job")
        words: dict[str, Any] = {
            "host": "here",
            "folder": folder,
            "cwd": folder,
            "path": ["/bin"],
            "env": {},
            "grace": 60.0,
        }
        channel.ask(PREPARE, **words, code=[], library=[], files=[])
        channel.ask(WATCH, every=0.2)
        channel.ask(START, argv=["/bin/sh", "-c", "echo $$; exec sleep 300"])
        line = next_event(LauncherLine)
        next_event(Sampled)
        python.replace()
        channel.ask(PING)
        next_event(Sampled)
        job: dict[str, Any] = {"job": "job", "host": "here", "digest": None}
        channel.ask(ARRIVALS, **job)
        channel.ask(WHY, **job)
        with pytest.raises(MusterError, match="was replaced in the meantime"):
            channel.ask(STORE, b"an archive")
        channel.ask(OUTPUTS)
        assert end(channel).left == ()
        assert not is_alive(int(line.text))
    finally:
        channel.close()
