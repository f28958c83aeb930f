"""Which hosts fail the measurements before a launch. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .hosts import FigureLine, Speeds, describe, slow_hosts, slower_hosts
from .links import Links, Slow, outliers, slower, worst_first
from .links_text import describe as describe_link
from .links_text import describe_slower


@dataclass(frozen=True)
class Measured:
    """The figures of one measurement. `links`: None of a single host. `problems`: by host without figures."""

    speeds: Speeds
    links: Links | None
    problems: Mapping[str, str]


def of_hosts(speeds: Speeds) -> Speeds:
    """The figures of ranks as figures of hosts: of ranks of one host with a figure of one name, their sum.

    The name gets the number of these ranks, because only hosts with as many can be compared.
    """
    figures: dict[str, dict[str, list[FigureLine]]] = {}
    for host, lines in zip(speeds.hosts, speeds.figures, strict=True):
        for line in lines:
            figures.setdefault(host, {}).setdefault(line.name, []).append(line)
    hosts = tuple(dict.fromkeys(speeds.hosts))
    return replace(
        speeds,
        hosts=hosts,
        figures=tuple(tuple(map(_sum, figures.get(host, {}).values())) for host in hosts),
    )


def _sum(lines: Sequence[FigureLine]) -> FigureLine:
    name = lines[0].name if len(lines) == 1 else f"{lines[0].name} of {len(lines)} ranks"
    return replace(lines[0], name=name, value=sum(line.value for line in lines))


def failing(now: Measured, speeds_before: Speeds | None, links_before: Links | None) -> dict[str, str]:
    """The hosts that are slow compared with the others or with their own baseline, each with its reason."""
    reasons = dict(now.problems)
    for slow in slow_hosts(now.speeds):
        reasons.setdefault(slow.host, _without(slow.host, describe(slow, "the others have")))
    for slow in slower_hosts(now.speeds, speeds_before) if speeds_before else ():
        reasons.setdefault(slow.host, _without(slow.host, describe(slow, "it had")))
    if now.links:
        reasons = {**dict(_of_links(now.links, links_before, reasons)), **reasons}
    return reasons


def _of_links(links: Links, before: Links | None, known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The hosts with most of their links slow; then, for each slow link that is left, one of its hosts.

    This is the host with the most slow links, and of two with as many the later one in the hosts file.
    """
    slow = [(each, describe_link(each)) for each in worst_first(partial(outliers, links))]
    if before:
        slow += [(each, describe_slower(each)) for each in worst_first(partial(slower, links, before))]
    failed = {*known}
    for each, text in slow:
        if each.where != "link" and (host := each.source or each.target) not in failed:
            failed.add(host)
            yield host, _without(host, text)
    left = [(each, text) for each, text in slow if each.where == "link" and not _ends(each) & failed]
    while left:
        host = _most_common([each for each, _ in left], links.hosts)
        yield host, next(f"the link {text}" for each, text in left if host in _ends(each))
        left = [(each, text) for each, text in left if host not in _ends(each)]


def _ends(slow: Slow) -> set[str]:
    return {slow.source, slow.target}


def _most_common(slow: Sequence[Slow], hosts: Sequence[str]) -> str:
    pairs = {(each.source, each.target) for each in slow}
    counts = Counter(name for pair in pairs for name in pair)
    return max(counts, key=lambda name: (counts[name], hosts.index(name)))


def _without(host: str, text: str) -> str:
    return text.removeprefix(f"{host}: ")


def with_new_hosts(before: Speeds | None, now: Speeds, failed: Iterable[str]) -> Speeds:
    """The baseline with the figures that it lacks, of hosts that did not fail."""
    rows: dict[str, dict[tuple[str, str], FigureLine]] = {}
    for speeds in (now, before) if before else (now,):
        for host, lines in zip(speeds.hosts, speeds.figures, strict=True):
            if speeds is before or host not in {*failed}:
                rows.setdefault(host, {}).update({(line.name, line.unit): line for line in lines})
    return replace(
        before or now, hosts=tuple(rows), figures=tuple(tuple(row.values()) for row in rows.values())
    )


def with_new_links(before: Links | None, now: Links, failed: Iterable[str]) -> Links:
    """The same for links."""
    fit = now.among([host for host in now.hosts if host not in {*failed}])
    links = {(link.source, link.target): link for each in (fit, before) if each for link in each.links}
    hosts = dict.fromkeys([*(before.hosts if before else ()), *fit.hosts])
    return replace(before or now, hosts=tuple(hosts), links=tuple(links.values()))
