"""Slow links and hosts of a benchmark as findings of a check: warnings, because a launch works. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...core.hosts.finding import Finding
from .hosts import SlowHost
from .hosts import describe as describe_host
from .links import Slow
from .links_text import describe

_LINK = "look at cable, switch port, driver, MTU and other traffic; muster bench links measures them in full"
_HOST = "look at what else runs there, clock rate and cooling; muster bench hosts measures it in full"


def of_links(slow: Iterable[Slow]) -> Iterator[Finding]:
    """`bench.slow-link` for a link, `bench.slow-network` for a host with most of its links slow."""
    for each in slow:
        kind = "bench.slow-link" if each.where == "link" else "bench.slow-network"
        host, peer = each.source or each.target, each.target if each.where == "link" else ""
        text = describe(each).removeprefix(f"{host}: ")
        yield Finding(kind, host, "warning", text, _LINK, peer)


def of_hosts(slow: Iterable[SlowHost]) -> Iterator[Finding]:
    """`bench.slow-host`."""
    for each in slow:
        text = describe_host(each, "the others have").removeprefix(f"{each.host}: ")
        yield Finding("bench.slow-host", each.host, "warning", text, _HOST)


def failed(host: str, reason: str) -> Finding:
    """`bench.failed`: the benchmark itself failed."""
    return Finding("bench.failed", host, "warning", reason, "muster bench links shows it with its logs")
