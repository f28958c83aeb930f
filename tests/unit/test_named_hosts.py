"""What is done on every host at once, and what is said where it could not be."""

from __future__ import annotations

import io
from typing import Any

import pytest

from muster.deploy.cli import job_commands
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.find import LogLine
from muster.deploy.core.text.screen import Screen
from muster.deploy.features.clean.command import clean_hosts


def test_where_no_host_can_be_reached_nothing_is_done() -> None:
    cluster = Cluster(hostfile.parse("node[1-2]"), lambda host: pytest.fail("no way there"))
    assert clean_hosts(cluster, 0.0, results=False).results == {}


def test_a_host_is_named_once() -> None:
    def silent(host: hostfile.Host) -> Any:
        raise LostError("no answer within 30 s", host=host.name)

    with pytest.raises(UnfitError) as caught, Cluster(hostfile.parse("node[1-2]"), silent):
        pass
    assert str(caught.value) == "node[1-2]: no answer within 30 s"


def test_what_a_driver_said_in_several_lines_is_shown_in_several_lines() -> None:
    stream = io.StringIO()
    job_commands._show(Screen(stream), LogLine(None, "", "driver.log", "one\x1b[2J\ntwo\n"))
    assert stream.getvalue() == "one␛[2J\ntwo\n"
