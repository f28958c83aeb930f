"""The hosts file: what is read from it, and what is said of every mistake in it."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from pathlib import Path

import pytest

from muster.deploy.core.errors import HostfileError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.hosts.slots import NO_GPU, counted_slots, slot_rule
from tests.unit.plans import NODE


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1 slots=4", [Host("node1", 4)]),
        ("node1", [Host("node1", 1)]),
        ("# nothing here\n\n  node1 slots=2   # comment, with apostrophe's\n", [Host("node1", 2)]),
        ("node1 slots=2\r\nnode2 slots=2\r\n", [Host("node1", 2), Host("node2", 2)]),
        ("\tnode1\tslots=2", [Host("node1", 2)]),
        ("a user=ml port=2222 addr=10.0.0.7", [Host("a", 1, "ml", 2222, "10.0.0.7")]),
        ("a addr=fe80::1", [Host("a", addr="fe80::1")]),
        ("node[8-11] slots=2", [Host(f"node{number}", 2) for number in (8, 9, 10, 11)]),
        ("node[08-10]", [Host("node08"), Host("node09"), Host("node10")]),
        ("n[1,3-4]-ib", [Host("n1-ib"), Host("n3-ib"), Host("n4-ib")]),
        ("r[1-2]n[1-2]", [Host("r1n1"), Host("r1n2"), Host("r2n1"), Host("r2n2")]),
        ("n[1-2] addr=10.0.0.[11-12]", [Host("n1", addr="10.0.0.11"), Host("n2", addr="10.0.0.12")]),
        ("10.1.2.3 slots=2", [Host("10.1.2.3", 2)]),
        ("gpu-a.example.org", [Host("gpu-a.example.org")]),
        ("node1 // slots=9\nnode2 slots=2//no", [Host("node1"), Host("node2", 2)]),
        ("/* two\nlines # */ node1 /* */ slots=2 /**/\n# /* no\nnode2", [Host("node1", 2), Host("node2")]),
        ("a # one\rb # two\rc", [Host("a"), Host("b"), Host("c")]),
        ("node1 slots = 4 user =ml port= 22", [Host("node1", 4, "ml", 22)]),
        ("node1 slots=2 max_slots=4\nnode2 max-slots = 9", [Host("node1", 2), Host("node2")]),
    ],
)
def test_it_reads(text: str, hosts: list[Host]) -> None:
    assert list(hostfile.parse(text)) == hosts


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("node1 slots=8x", "hosts.txt:1:7: slots must be a positive integer, got '8x'"),
        ("node1 slots=0", "hosts.txt:1:7: slots must be a positive integer, got '0'"),
        ("node1 slots=-1", "hosts.txt:1:7: slots must be a positive integer, got '-1'"),
        ("node1 slots=", "hosts.txt:1:7: slots must be a positive integer, got ''"),
        ("node1 slots=٣", "hosts.txt:1:7: slots must be a positive integer, got '٣'"),
        ("node1 slots=9999", "hosts.txt:1:7: slots is at most 1024, got '9999'"),
        ("node1 slots=99999999999", "hosts.txt:1:7: slots is at most 1024, got '99999999999'"),
        ("node1 slots= user=ml", "hosts.txt:1:7: slots must be a positive integer, got ''"),
        ("node1 slots=4 max_slots=2", "hosts.txt:1:1: max_slots=2 is below slots=4"),
        ("node1 max_slots=2 max-slots=2", "hosts.txt:1:19: max_slots is given twice"),
        ("node1 cpu=4", "hosts.txt:1:7: expected slots=, user=, port= or addr=, got 'cpu=4'; write slots=4"),
        (
            "node1 username=ml",
            "hosts.txt:1:7: expected slots=, user=, port= or addr=, got 'username=ml'; write user=",
        ),
        ("node1\nnode2 /* no end\nnode3", "hosts.txt:2:7: this comment has no end: write */ after it"),
        ("node1 \udce4", "hosts.txt:1:7: the byte 0xe4 is not UTF-8"),
        ("node1 port=70000", "hosts.txt:1:7: port must be between 1 and 65535, got '70000'"),
        ("node1 sluts=4", "hosts.txt:1:7: expected slots=, user=, port= or addr=, got 'sluts=4'"),
        ("node1 4", "hosts.txt:1:7: expected slots=, user=, port= or addr=, got '4'"),
        ("node1 slots=4 slots=2", "hosts.txt:1:15: slots is given twice"),
        ("node1 user=a;b", "hosts.txt:1:7: user must be a login name, got 'a;b'"),
        ("node1 addr=$(id)", "hosts.txt:1:7: addr must be an IP address or a name, got '$(id)'"),
        ("ml@node1", "hosts.txt:1:1: write 'node1 user=ml', got 'ml@node1'"),
        ("node1:4", "hosts.txt:1:1: write 'node1 port=4' or 'node1 slots=4', got 'node1:4'"),
        ("node1:2222 slots=2", "hosts.txt:1:1: write 'node1 port=2222', got 'node1:2222'"),
        ("node1:2222", "hosts.txt:1:1: write 'node1 port=2222', got 'node1:2222'"),
        ("node1\nNode1", "hosts.txt:2:1: Node1 is already on line 1, as node1"),
        ("-oProxyCommand=x", "hosts.txt:1:1: a host name has letters"),
        ("node1;reboot", "hosts.txt:1:1: a host name has letters"),
        ("localhost.", "hosts.txt:1:1: write 'localhost', without the dot at the end, got 'localhost.'"),
        ("node[3-1]", "hosts.txt:1:1: a range goes upwards, got [3-1]"),
        ("node[1-99999]", "hosts.txt:1:1: [1-99999] is more than 4096 hosts"),
        ("node[1-100][1-100]", "hosts.txt:1:1: node[1-100][1-100] is more than 4096 hosts"),
        ("node[1-", "hosts.txt:1:1: a range is written node[01-16], got 'node[1-'"),
        ("node[a-b]", "hosts.txt:1:1: a range is written [01-16] or [1,3,5-7], got [a-b]"),
        ("n[1-3] addr=10.0.0.[1-2]", "hosts.txt:1:1: 3 hosts but 2 addresses in addr="),
        ("a\nb\na slots=2", "hosts.txt:3:1: a is already on line 1"),
        ("n[1-3]\nn2", "hosts.txt:2:1: n2 is already on line 1"),
        ("# only comments\n", "hosts.txt:1:1: no hosts"),
    ],
)
def test_it_refuses(text: str, complaint: str) -> None:
    with pytest.raises(HostfileError) as caught:
        hostfile.parse(text)
    assert str(caught.value).startswith(complaint)
    assert len(caught.value.problems) == 1
    assert caught.value.exit_status == 2


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(HostfileError) as caught:
        hostfile.parse("node1 slots=8x port=0\n\nnode2 slots=2\nnode2\n")
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [(1, 7), (1, 16), (4, 1)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such hosts file"),
        (b"", "no hosts"),
        (b"\x7fELF\x00\x01", "is not a text file"),
        ("node1 slots=2".encode("utf-16"), "is not a text file"),
        (b"node1 slots=\xff\xfe", "1:13: the byte 0xff is not UTF-8"),
        (b"# x\n" * (1 << 23), "is larger than 16 MiB"),
    ],
)
def test_a_file_that_cannot_be_one(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "hosts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=complaint) as caught:
        hostfile.load(path)
    assert str(path) in str(caught.value)


def test_a_folder_is_not_a_hosts_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        hostfile.load(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(b"\xef\xbb\xbfnode1 slots=2\r\n")
    assert hostfile.load(path) == (Host("node1", 2),)


def test_a_comment_may_be_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(b"# f\xfcr alle\nnode1 slots=2  // \xe4\n")
    assert hostfile.load(path) == (Host("node1", 2),)


@pytest.mark.parametrize("line", ["node1\n", "n[1-4096]\n", "node1 slots=x\n", "ml@node1\n"])
def test_of_endless_mistakes_the_first_ones_are_reported(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def parse_line(one: str) -> object:
        read.append(one)
        return original(one)

    original = hostfile._parse_line
    monkeypatch.setattr(hostfile, "_parse_line", parse_line)
    with pytest.raises(HostfileError) as caught:
        hostfile.parse(line * 100_000)
    assert len(caught.value.problems) == hostfile.MOST_PROBLEMS + 1
    assert "there are more mistakes from here on" in caught.value.problems[-1].text
    assert len(read) <= hostfile.MOST_PROBLEMS + 2


def test_of_too_many_hosts_no_more_are_read() -> None:
    with pytest.raises(HostfileError, match="5:1: more than 4096 hosts; that is the limit"):
        hostfile.parse("".join(f"{name}[1-1000]\n" for name in "abcdefgh"))


def test_a_host_without_slots_is_known_as_that() -> None:
    assert [host.slots_by_default for host in hostfile.parse("a slots=1\nb")] == [False, True]


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        ("", "", "n1 n2 n3 gpu"),
        ("n[1-2]", "", "n1 n2"),
        ("gpu,n1", "", "n1 gpu"),
        ("n[1,3],gpu", "n3", "n1 gpu"),
        ("", "n[1-3]", "gpu"),
    ],
)
def test_hosts_are_selected_in_the_order_of_the_file(include: str, exclude: str, names: str) -> None:
    hosts = hostfile.parse("n[1-3]\ngpu")
    assert [host.name for host in hostfile.select(hosts, include, exclude)] == names.split()


@pytest.mark.parametrize(
    ("include", "exclude", "complaint"),
    [
        ("n9", "", "--include: n9 not in the hosts file, which has n1, n2"),
        ("", "n[1-2]", "leave no host"),
        ("n[2", "", "--include n.2: a range"),
        ("n1,", "", "--include n1,: a name between commas is missing"),
        ("", ",", "--exclude ,: a name between commas is missing"),
    ],
)
def test_a_selection_that_cannot_be(include: str, exclude: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        hostfile.select(hostfile.parse("n[1-2]"), include, exclude)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("n[" + "1-4096," * 20_000 + "1]", "is more than 4096 hosts"),
        ("n1 addr=[" + "1-4096," * 20_000 + "1]", "is more than 4096 hosts"),
        ("[1]" * 40_000, "a name has at most 253 characters"),
        ("n" * 100_000 + "[1-4096]", "a name has at most 253 characters"),
    ],
)
def test_a_pattern_is_bounded_before_a_name_is_made(pattern: str, complaint: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostfileError, match=complaint) as refused:
            hostfile.parse(pattern)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("part", ["n1,", "n[1-4096],", "x[1,2],"])
def test_a_long_list_of_hosts_is_refused_soon_and_in_a_few_words(part: str) -> None:
    began = time.process_time()
    with pytest.raises(UsageError) as refused:
        hostfile.select(hostfile.parse("n1"), part * 40_000)
    assert time.process_time() - began < 5
    assert len(str(refused.value)) < 3000


@pytest.mark.parametrize(
    ("name", "local"), [("localhost", True), ("LocalHost", True), ("::1", True), ("127.0.0.2", False)]
)
def test_localhost_is_this_machine_however_it_is_spelled(name: str, local: bool) -> None:
    (host,) = hostfile.parse(name)
    assert host.is_local is local


# -- `--slots`: how many slots hosts get from what they have --


HOSTS = hostfile.parse("big slots=2\nsmall\nsilent slots=3\n")
FACTS = {
    "big": dataclasses.replace(NODE, cores=64, gpus=8),
    "small": dataclasses.replace(NODE, cores=4, gpus=0),
}


@pytest.mark.parametrize(
    ("text", "slots"), [("cores", [64, 4, 3]), ("auto", [8, 4, 3]), ("gpu", [8, 1, 3]), ("5", [5, 5, 5])]
)
def test_slots_are_counted_on_every_host_that_has_answered(text: str, slots: list[int]) -> None:
    hosts, _ = counted_slots(HOSTS, FACTS, slot_rule(text))
    assert [host.slots for host in hosts] == slots


def test_a_host_without_gpus_is_named_where_gpus_count() -> None:
    assert counted_slots(HOSTS, FACTS, "gpus")[1] == {"small": NO_GPU}
    assert [counted_slots(HOSTS, FACTS, rule)[1] for rule in ("cores", "auto", 4)] == [{}, {}, {}]


def test_more_cores_than_a_host_may_have_slots_are_that_many_slots() -> None:
    facts = {"big": dataclasses.replace(NODE, cores=1 << 16)}
    hosts, _ = counted_slots(HOSTS[:1], facts, "cores")
    assert hosts[0].slots == hostfile.MAX_SLOTS


def test_a_counted_slot_is_not_shown_as_the_default_of_the_file() -> None:
    hosts, _ = counted_slots(HOSTS, FACTS, "auto")
    assert [host.slots_by_default for host in hosts] == [False, False, False]


@pytest.mark.parametrize("text", ["GPUs", "0", "-1", "4.0", "1025", "٣", "99999"])
def test_a_rule_that_cannot_be_says_what_to_write(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"--slots {text}: write gpus, cores, auto, or a number from 1 to 1024"
    ):
        slot_rule(text)
