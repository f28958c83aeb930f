"""Answers a scrape while a launch runs (`--metrics`): numbers of ranks, of events and of printed bytes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..common.os_errors import explain
from ..errors import MusterError, UsageError
from ..launch.events import Observer
from ..launch.job_events import JobEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"
STATES = ("planned", "started", "ended", "failed")


def address_of(text: str) -> tuple[str, int]:
    """The address and port of `--metrics`: `9400`, `10.0.0.1:9400`, `[::1]:9400`."""
    match = re.fullmatch(r"(?:\[?([0-9A-Fa-f.:]+?)\]?:)?(\d{1,5})", text)
    if not match or not 1 <= int(match[2]) <= 65535:
        raise UsageError(f"--metrics {text}: write a port such as 9400, or ADDRESS:PORT")
    return match[1] or LOOPBACK, int(match[2])


class Scrape(Observer):
    """An observer of a launch that keeps the figures of a scrape."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus  # noqa: PLC0415  # 25 ms, only with --metrics
        except ImportError:
            raise MusterError(
                "--metrics needs prometheus-client, which is missing here: pip install prometheus-client"
            ) from None
        self.registry = prometheus.CollectorRegistry()
        gauge = partial(prometheus.Gauge, registry=self.registry)
        counter = partial(prometheus.Counter, registry=self.registry)
        self._info = gauge("muster_job_info", "The job; always 1", ["job"])
        self._attempt = gauge("muster_attempt", "How often the job was started again")
        self._hosts = gauge("muster_hosts", "Hosts of the attempt")
        self._ranks = gauge("muster_ranks", "Ranks of the attempt, by state", ["state"])
        self._events = counter("muster_events", "Events, by type", ["type"])
        self._bytes = counter("muster_output_bytes", "Bytes that ranks have printed", ["host"])
        self._last_output = gauge(
            "muster_rank_last_output_timestamp_seconds", "When a rank printed last", ["rank", "host"]
        )
        self._status = gauge("muster_job_exit_status", "Exit status; absent while the job runs", [])
        self._status_known = False
        self.registry.unregister(self._status)

    def count(self, event: JobEvent) -> None:
        self._events.labels(event.type).inc()
        if event.type == "attempt.started":
            self._info.labels(event.job).set(1)
            self._attempt.set(event.attempt)
            self._hosts.set(len(event.hosts or ()))
            self._last_output.clear()
            for state in STATES:
                self._ranks.labels(state).set((event.ranks or 0) if state == "planned" else 0)
        elif event.type == "rank.started":
            self._ranks.labels("started").inc()
        elif event.type == "rank.ended":
            self._ranks.labels("ended" if event.code == 0 else "failed").inc()
        elif event.type == "job.ended" and not self._status_known:
            self._status_known = True
            self.registry.register(self._status)
            self._status.set(event.exit_status or 0)

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        self._bytes.labels(host).inc(len(text.encode(errors="surrogatepass")))
        self._last_output.labels(str(rank), host).set_to_current_time()


@contextlib.contextmanager
def scraped(text: str) -> Iterator[Scrape | None]:
    """The observer of `--metrics`, with its server; None without the option."""
    if not text:
        yield None
        return
    scrape = Scrape()
    with served(text, scrape.registry):
        yield scrape


@contextlib.contextmanager
def served(text: str, registry: CollectorRegistry) -> Iterator[None]:
    """Answer scrapes at the address of `--metrics`."""
    address, port = address_of(text)
    from prometheus_client import start_http_server  # noqa: PLC0415  # the caller has found it

    try:
        server, _ = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UsageError(f"--metrics {text}: {explain(error)}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
