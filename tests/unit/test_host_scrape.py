"""Scrapes of hosts: without a job, with a job, and of a host that is down."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from muster.deploy.cli import host_scrape
from muster.deploy.cli.host_scrape import HostCollector, HostReading
from muster.deploy.cli.program import main
from muster.deploy.cli.scrape import Scrape
from muster.deploy.connect.requests.jobs import JOBS
from muster.deploy.errors import MusterError
from muster.deploy.hosts.hostfile import Host
from muster.deploy.hosts.samples import GpuSample, HostSample
from tests.unit.records import job as job_of

DASHBOARD = Path(__file__).parents[2] / "docs" / "how-to" / "muster-grafana.json"
SAMPLE = HostSample(at=1.0, host="node1", cpu=0.25, memory=3, gpus=(GpuSample(0, clock=1500.0, ecc=0),))


def scrape(collector: Any) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_an_idle_host_has_its_load_and_no_job_and_a_host_that_is_down_only_that() -> None:
    collector = HostCollector(["node1", "node2"])
    collector.readings["node1"] = HostReading(SAMPLE)
    values = [line for line in scrape(collector).splitlines() if not line.startswith("#")]
    assert values == [
        'muster_host_up{host="node1"} 1.0',
        'muster_host_up{host="node2"} 0.0',
        'muster_host_cpu_usage_ratio{host="node1"} 0.25',
        'muster_host_memory_used_bytes{host="node1"} 3.0',
        'muster_gpu_clock_hertz{gpu="0",host="node1"} 1.5e+09',
        'muster_gpu_memory_uncorrected_errors{gpu="0",host="node1"} 0.0',
        'muster_host_jobs{host="node1"} 0.0',
    ]


def test_a_job_on_two_hosts_is_counted_on_each_and_has_its_ranks_once() -> None:
    collector, job = HostCollector(["node1", "node2"]), job_of(2, 4)
    collector.readings = dict.fromkeys(collector.readings, HostReading(SAMPLE, (job,)))
    text = scrape(collector)
    assert re.findall(r"^muster_host_jobs.*", text, re.M) == [
        f'muster_host_jobs{{host="node{number}"}} 1.0' for number in (1, 2)
    ]
    assert [line for line in text.splitlines() if line.startswith("muster_job_")] == [
        f'muster_job_ranks{{job="{job.job}"}} 4.0',
        f'muster_job_start_time_seconds{{job="{job.job}"}} 1.76379994e+09',
    ]


class Hosts:
    """A host that refuses the first connection, and breaks the second one after two samples."""

    def __init__(self) -> None:
        self.connections, self.asked = 0, 0
        self.channels = {"node1": self}

    def __call__(self, *_: Any, **__: Any) -> Hosts:
        return self

    def __enter__(self) -> Hosts:
        self.connections += 1
        self.asked = 0
        if self.connections == 1:
            raise MusterError("no route", host="node1")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Any, **_: Any) -> Any:
        if request is JOBS:
            return SimpleNamespace(jobs=(job_of(1, 2), job_of(1, 2, state="done")))
        self.asked += 1
        if self.asked == 3 and self.connections == 2:
            raise MusterError("it is silent", host="node1")
        return SimpleNamespace(sample='{"at": 1, "host": "node1", "cpu": 0.5}')


def test_a_host_is_read_again_after_each_lost_connection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collector, hosts, seen = HostCollector(["node1"]), Hosts(), []

    def sleep(seconds: float) -> None:
        reading = collector.readings["node1"]
        seen.append(reading and len(reading.jobs))
        if len(seen) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(host_scrape, "Cluster", hosts)
    monkeypatch.setattr(host_scrape, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        host_scrape._keep_watching(Host("node1"), lambda host: None, collector)  # type: ignore[arg-type, return-value]
    assert seen == [None, 1, 1, None, 1, 1]
    again = "node1: answers again\n"
    assert capsys.readouterr().err == f"node1: no route\n{again}node1: it is silent\n{again}"


def test_the_dashboard_shows_metrics_that_scrapes_have() -> None:
    collector = HostCollector(["node1"])
    collector.readings["node1"] = HostReading(SAMPLE)
    texts = scrape(collector), generate_latest(Scrape().registry).decode()
    names = {*re.findall(r"^# TYPE (muster_\w+)", "".join(texts), re.M)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"muster_\w+", target["expr"])
    }
    assert shown <= names and len(shown) > 15


def test_scrapes_of_hosts_are_for_top_without_a_job() -> None:
    for arguments in ("--metrics 1", "--hosts h --metrics 1 abcd", "--hosts h --metrics 1 --once"):
        with pytest.raises(SystemExit) as end:
            main(["top", *arguments.split()])
        assert end.value.code == 2
