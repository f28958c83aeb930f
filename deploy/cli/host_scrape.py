"""`muster top --hosts FILE --metrics PORT`: answers scrapes with the load and the jobs of hosts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..connect.cluster import Cluster
from ..connect.pipe import OpenPipe
from ..connect.requests.jobs import JOBS, JobState
from ..connect.requests.launch import SAMPLE
from ..console.progress import Progress
from ..console.text import count
from ..errors import MusterError
from ..hosts import samples
from ..hosts.hostfile import Host
from ..hosts.samples import GpuSample, HostSample
from .scrape import address_of, served
from .shared import print_note

PAUSE_SECONDS, RETRY_SECONDS = 5.0, 15.0
JOBS_EVERY = 3
"""Samples of a host for each look at its jobs, which reads a folder for each job."""

_HOST: Mapping[str, tuple[str, Callable[[HostSample], float | None]]] = {
    "cpus": ("Processors", lambda host: host.cpus),
    "cpu_usage_ratio": ("Share of all processors that was busy", lambda host: host.cpu),
    "load1": ("Processes that run or wait, over the last minute", lambda host: host.load),
    "memory_used_bytes": ("Memory that is not available to programs", lambda host: host.memory),
    "memory_size_bytes": ("All memory", lambda host: host.memory_total),
    "swap_used_bytes": ("Swap in use", lambda host: host.swap),
    "shm_used_bytes": ("Used part of /dev/shm", lambda host: host.shm),
    "shm_size_bytes": ("Size of /dev/shm", lambda host: host.shm_total),
    "network_receive_bytes_per_second": ("Received, over physical interfaces", lambda host: host.net_in),
    "network_transmit_bytes_per_second": ("Sent, over physical interfaces", lambda host: host.net_out),
    "disk_read_bytes_per_second": ("Read, over all disks", lambda host: host.disk_read),
    "disk_written_bytes_per_second": ("Written, over all disks", lambda host: host.disk_write),
    "temperature_celsius": ("Hottest sensor of processors and board", lambda host: host.temperature),
}
_GPU: Mapping[str, tuple[str, Callable[[GpuSample], float | None]]] = {
    "utilization_ratio": ("Share of the time in which it computed", lambda gpu: gpu.utilisation),
    "memory_used_bytes": ("Memory in use", lambda gpu: gpu.memory),
    "memory_size_bytes": ("All memory", lambda gpu: gpu.memory_total),
    "power_watts": ("Power", lambda gpu: gpu.power),
    "temperature_celsius": ("Temperature", lambda gpu: gpu.temperature),
    "clock_hertz": (
        "Clock of its multiprocessors",
        lambda gpu: None if gpu.clock is None else gpu.clock * 1e6,
    ),
    "memory_uncorrected_errors": ("Errors of its memory since its driver was loaded", lambda gpu: gpu.ecc),
}


@dataclass(frozen=True)
class HostReading:
    """The newest figures of a host that answers."""

    sample: HostSample
    jobs: tuple[JobState, ...] = ()
    """The jobs that run on it."""


class HostCollector(Collector):
    """Makes the metrics of a scrape from the newest readings. A host that does not answer has only `up`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.readings: dict[str, HostReading | None] = dict.fromkeys(hosts)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = {host: reading for host, reading in self.readings.items() if reading}
        yield _gauge(
            "muster_host_up",
            "Whether the host answers: 1 or 0",
            "host",
            (((host,), host in up) for host in self.readings),
        )
        for name, (text, of_host) in _HOST.items():
            figures = (((host,), of_host(reading.sample)) for host, reading in up.items())
            yield _gauge(f"muster_host_{name}", text, "host", figures)
        for name, (text, of_gpu) in _GPU.items():
            gpus = ((host, gpu) for host, reading in up.items() for gpu in reading.sample.gpus)
            of_gpus = (((host, str(gpu.index)), of_gpu(gpu)) for host, gpu in gpus)
            yield _gauge(f"muster_gpu_{name}", text, "host gpu", of_gpus)
        counts = (((host,), len(reading.jobs)) for host, reading in up.items())
        yield _gauge("muster_host_jobs", "Jobs that run on the host", "host", counts)
        jobs = {job.job: job for reading in up.values() for job in reading.jobs}.values()
        ranks = (((job.job,), job.ranks) for job in jobs)
        yield _gauge("muster_job_ranks", "Ranks of a job that runs", "job", ranks)
        started = (((job.job,), job.started) for job in jobs)
        yield _gauge("muster_job_start_time_seconds", "When a job that runs began", "job", started)


def _gauge(
    name: str, text: str, labels: str, figures: Iterable[tuple[Sequence[str], float | None]]
) -> GaugeMetricFamily:
    """A metric, without the figures that a host does not measure."""
    family = GaugeMetricFamily(name, text, labels=labels.split())
    for values, figure in figures:
        if figure is not None:
            family.add_metric(values, figure)
    return family


def _watch(host: Host, open_pipe: OpenPipe, take: Callable[[HostReading], None]) -> None:
    """Read a host's figures again and again; a `MusterError` is the end of its connection."""
    with Cluster([host], open_pipe, facts=False) as cluster:
        channel, jobs = cluster.channels[host.name], tuple[JobState, ...]()
        for number in itertools.count():
            try:
                sample = samples.of_line(channel.ask(SAMPLE).sample)
            except ValueError as error:
                raise MusterError(f"{host.name}: {error}") from None
            if number % JOBS_EVERY == 0:
                jobs = tuple(job for job in channel.ask(JOBS, job="").jobs if job.state == "running")
            take(HostReading(sample, jobs))
            time.sleep(PAUSE_SECONDS)


def _keep_watching(host: Host, open_pipe: OpenPipe, collector: HostCollector) -> None:
    """The same, with a new connection after each error. Each change is a line on stderr."""
    name, readings, is_lost = host.name, collector.readings, False

    def take(reading: HostReading) -> None:
        nonlocal is_lost
        if is_lost:
            print_note(f"{name}: answers again")
        is_lost, readings[name] = False, reading

    while True:
        try:
            _watch(host, open_pipe, take)
        except MusterError as error:
            readings[name] = None
            if not is_lost:
                print_note(str(error))
            is_lost = True
        time.sleep(RETRY_SECONDS)


def answer_scrapes(text: str, hosts: Sequence[Host], open_pipe: OpenPipe) -> None:
    """Answer scrapes at the address of `--metrics` until the user ends it."""
    registry, collector = CollectorRegistry(), HostCollector([host.name for host in hosts])
    registry.register(collector)
    with served(text, registry):
        address, port = address_of(text)
        shown = f"[{address}]" if ":" in address else address
        print_note(f"answering scrapes of {count(len(hosts), 'host')} at http://{shown}:{port}/metrics")
        Progress.close_all()  # it runs without an end
        for host in hosts:
            threading.Thread(target=_keep_watching, args=(host, open_pipe, collector), daemon=True).start()
        threading.Event().wait()
