"""What is said about the links of a cluster: from the lines of its ranks to matrix and outliers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping

import pytest

from muster.deploy.core.errors import MusterError
from muster.deploy.features.bench.link_speeds import (
    HostLink,
    Links,
    Pair,
    Slow,
    median_of_rest,
    outliers,
    read,
    worst_first,
)
from muster.deploy.features.bench.links_text import COLOURS, HEALTHY, USUAL, as_text, links_page
from muster.deploy.features.check.command import Checkup
from muster.deploy.features.check.command_bench import of_links

FAST, SLOW = 1.2e9, 12e6  # bytes per second
LATENCY = 30e-6


def run(
    count: int, bandwidth: Mapping[Pair, float] | None = None, latency: Mapping[Pair, float] | None = None
) -> Links:
    """Links between node1 ... nodeN, even but for some pairs; a little noise, the same in each test."""
    hosts = tuple(f"node{number}" for number in range(1, count + 1))
    links = tuple(
        HostLink(
            source=a,
            target=b,
            latency_s=(latency or {}).get((a, b), LATENCY * (1 + number % 7 / 40)),
            bytes_per_s=(bandwidth or {}).get((a, b), FAST * (1 - number % 5 / 40)),
        )
        for number, (a, b) in enumerate(itertools.permutations(hosts, 2))
    )
    return Links("20261122-120000-aaaa", "2026-11-22 12:00 UTC", "gloo", "cpu", hosts, links)


def printed(count: int) -> dict[int, str]:
    """What the ranks of a healthy run print."""
    texts = {
        rank: "".join(
            json.dumps({"bench": "link", "to": to, "latency_s": LATENCY, "bytes_per_s": FAST + rank}) + "\n"
            for to in range(count)
            if to != rank
        )
        for rank in range(count)
    }
    about = {"bench": "links", "ranks": count, "backend": "gloo", "device": "cpu"}
    return {**texts, 0: f"a warning of torch\n{json.dumps(about)}\n{texts[0]}"}


def named(links: Links) -> set[tuple[str, str, str]]:
    return {(slow.where, slow.source, slow.target) for slow in outliers(links, "bandwidth")}


# -- lines --


def test_every_rank_tells_the_links_that_begin_at_its_host() -> None:
    links, problems = read("job", "now", ["a", "b", "c"], printed(3))
    assert problems == {}
    assert (links.backend, links.device) == ("gloo", "cpu")
    assert links.of("bandwidth")["c", "a"] == FAST + 2
    assert len(links.links) == 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"bench": "link", "to": 0, "latency_s": -1.0, "bytes_per_s": 1e9}', "latency_s"),
        ('{"bench": "link", "to": 0, "latency_s": 1e-5, "bytes_per_s": NaN}', "bytes_per_s"),
        ('{"bench": "link", "to": "0", "latency_s": 1e-5, "bytes_per_s": 1e9}', "to"),
        ('{"bench": "link", "to": 1, "latency_s": 1e-5, "bytes_per_s": 1e9}', "1 of its 2 links"),
        ('{"bench": "link", "to": 9, "latency_s": 1e-5, "bytes_per_s": 1e9}', "links"),
        ('{"bench": "link"', "0 of its 2 links"),
        ('{"bench": "link", "to": ' + "[" * 3000, "0 of its 2 links"),
        ("", "0 of its 2 links"),
    ],
)
def test_a_host_with_invalid_output_loses_only_its_own_row(line: str, said: str) -> None:
    links, problems = read("job", "now", ["a", "b", "c"], {**printed(3), 1: line + "\n"})
    assert [*problems] == ["b"]
    assert said in problems["b"]
    assert {link.source for link in links.links} >= {"a", "c"}
    assert all(link.target in {"a", "b", "c"} and link.source != link.target for link in links.links)


def test_a_rank_that_prints_more_links_than_there_are_is_named() -> None:
    text = printed(3)
    links, problems = read("job", "now", ["a", "b", "c"], {**text, 1: text[1] * 1000})
    assert "more than 2 lines" in problems["b"]
    assert len(links.links) == 6


@pytest.mark.parametrize("line", ["", '{"bench": "links", "ranks": 2, "backend": "../x", "device": "cpu"}'])
def test_without_a_valid_line_about_the_run_there_is_no_result(line: str) -> None:
    with pytest.raises(MusterError, match=r"^a: "):
        read("job", "now", ["a", "b"], {0: line + "\n"})


# -- outliers --


def test_links_of_one_speed_are_all_well() -> None:
    assert outliers(run(8), "bandwidth") == ()
    assert outliers(run(8), "latency") == ()


@pytest.mark.parametrize("count", [3, 4, 16])
def test_a_slow_link_is_named_in_its_direction(count: int) -> None:
    assert named(run(count, {("node1", "node2"): SLOW})) == {("link", "node1", "node2")}


def test_a_link_that_is_slow_both_ways_is_two_links() -> None:
    both = {("node1", "node2"): SLOW, ("node2", "node1"): SLOW}
    assert named(run(3, both)) == {("link", "node1", "node2"), ("link", "node2", "node1")}


@pytest.mark.parametrize("count", [3, 8])
@pytest.mark.parametrize("where", ["from", "to", "host"])
def test_a_host_with_a_slow_port_is_named_and_its_links_are_not(count: int, where: str) -> None:
    pairs = itertools.permutations([f"node{number}" for number in range(1, count + 1)], 2)
    ends = {"from": (0,), "to": (1,), "host": (0, 1)}[where]
    slow = {pair: SLOW for pair in pairs if any(pair[end] == "node2" for end in ends)}
    source, target = "" if where == "to" else "node2", "" if where == "from" else "node2"
    assert named(run(count, slow)) == {(where, source, target)}


def test_a_check_finds_a_slow_link_and_names_a_host_with_a_slow_port_once() -> None:
    (link,) = of_links(outliers(run(3, {("node1", "node2"): SLOW}), "bandwidth"))
    assert (link.id, link.host, link.peer) == ("bench.slow-link", "node1", "node2")
    assert link.text.startswith("node1 -> node2: 96 Mbit/s; the others")
    for ends in ((0,), (1,), (0, 1)):
        pairs = itertools.permutations(("node1", "node2", "node3"), 2)
        slow = {pair: SLOW for pair in pairs if any(pair[end] == "node2" for end in ends)}
        (port,) = of_links(outliers(run(3, slow), "bandwidth"))
        assert (port.id, port.host, port.peer) == ("bench.slow-network", "node2", "")
        assert port.text.startswith("links ")
    text = Checkup("mpirun", (port,)).as_text()
    assert "WARNING node2: links from it and to it, median 96 Mbit/s" in text


def test_a_late_link_is_named_against_its_row_and_column() -> None:
    (late,) = outliers(run(5, latency={("node4", "node1"): 3 * LATENCY}), "latency")
    assert (late.source, late.target, late.value) == ("node4", "node1", 3 * LATENCY)
    assert LATENCY <= late.usual < 1.2 * LATENCY


def test_two_hosts_have_no_other_links_to_be_compared_with() -> None:
    assert outliers(run(2, {("node1", "node2"): SLOW}), "bandwidth") == ()


def test_a_fast_pair_makes_no_other_slow() -> None:
    """Two hosts may be containers of one machine."""
    fast = {("node1", "node2"): 10 * FAST, ("node2", "node1"): 10 * FAST}
    assert named(run(4, fast)) == set()


def test_one_slow_link_of_256_hosts_is_named() -> None:
    assert named(run(256, {("node17", "node200"): SLOW})) == {("link", "node17", "node200")}


@pytest.mark.parametrize("removed", [[], [1], [3], [3, 3], [1, 2, 9], [3, 3, 9]])
def test_the_median_of_the_rest_is_that_of_the_numbers_that_are_left(removed: list[float]) -> None:
    import statistics

    numbers = [1.0, 2.0, 3.0, 3.0, 5.0, 9.0, 9.0]
    left = [*numbers]
    for number in removed:
        left.remove(number)
    assert median_of_rest(numbers, removed) == statistics.median(left)


# -- text and picture --


def test_the_text_has_both_matrices_and_what_is_slow() -> None:
    links = run(3, {("node1", "node2"): SLOW})
    text = as_text(links, outliers(links, "bandwidth"), {})
    assert (
        "bandwidth, Gbit/s: from the host of the row to that of the column\nfrom   node1  node2  node3\n"
        in text
    )
    assert "\nnode1      -  0.096   9.36\n" in text
    assert "SLOW    node1 -> node2: 96 Mbit/s; the others of its row and column: 9.36 Gbit/s" in text


def test_of_many_hosts_each_row_is_summed_up() -> None:
    text = as_text(run(100), (), {})
    assert max(map(len, text.splitlines())) < 80
    assert "node100" in text


def test_a_host_name_cannot_write_control_characters() -> None:
    links = Links("job", "now", "gloo", "cpu", ("a\x1b[2J", "b"), (HostLink("a\x1b[2J", "b", 1e-5, FAST),))
    assert "\x1b" not in as_text(links, (), {"b\x1b": "\x1b[2J"})


def test_slow_links_are_listed_from_the_worst_on() -> None:
    links = run(
        5,
        {("node1", "node2"): FAST / 3, ("node3", "node4"): FAST / 9},
        latency={("node4", "node1"): 5 * LATENCY},
    )
    worst = worst_first(links)
    assert [(slow.source, slow.target) for slow in worst] == [
        ("node3", "node4"),
        ("node4", "node1"),
        ("node1", "node2"),
    ]


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_figure_is_legible_on_its_colour() -> None:
    for name, back, ink in COLOURS:
        low, high = sorted((luminance(back), luminance(ink)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name  # WCAG 2, level AA


def test_a_slow_link_has_another_colour_than_the_others() -> None:
    links = run(4, {("node1", "node2"): SLOW}, {("node3", "node4"): 3 * LATENCY})
    page = links_page(links, worst_first(links))
    cells = re.findall(r"<td(?: class=(\w+))?>([\d.]*)", page)
    assert Counter(colour for colour, _ in cells) == {"none": 8, "c0": 1, "c1": 1, "": 22}
    assert [text for colour, text in cells if colour in {"c0", "c1"}] == ["0.096", "90"]
    assert "node1 -&gt; node2: 96 Mbit/s; the others" in page
    assert f"td, .c{USUAL} {{" in page
    assert HEALTHY in links_page(run(3), ())


def test_the_page_of_links_escapes_what_a_host_sent() -> None:
    links = Links("j", "<b>", "<b>", "cpu", ("<i>", "b\x1b"), (HostLink("<i>", "b\x1b", 1e-5, FAST),))
    page = links_page(links, [Slow("bandwidth", "link", "<i>", "b\x1b", 1.0, 2.0)])
    assert not re.search("<i>|<b>|\x1b", page)
    assert "<table" not in links_page(dataclasses.replace(links, links=()), ())


def test_the_page_of_256_hosts_stays_below_a_megabyte() -> None:
    assert len(links_page(run(256), ())) < 1_000_000
