"""The handler of an agent that has a job, in the process of a test."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from muster.deploy.core.agent.main import Agent, Handlers
from muster.deploy.core.agent.supervisor import JobSupervisor


def job_in(home: Path) -> JobSupervisor:
    """A job of an agent whose folder is `home`."""
    handler = Handlers(str(home), Agent(BytesIO(), BytesIO())).of("prepare")
    assert isinstance(handler, JobSupervisor)
    return handler
