"""The three ways to keep clocks together, and that a clock which is wrong is named with its figure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.ansible.bare_hosts import ADDRESSES

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts, Outcome

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
FOLDER = "/run/systemd/system/chrony.service.d"


@contextlib.contextmanager
def wrong_clock(hosts: Hosts, name: str) -> Iterator[None]:
    """The clock that chronyd sees on a host is 1.25 s ahead."""
    fake = f"LD_PRELOAD={FAKETIME} FAKETIME=+1.25s FAKETIME_DONT_FAKE_MONOTONIC=1"
    unit = f"mkdir -p {FOLDER}; printf '[Service]\\nEnvironment={fake}\\n' >{FOLDER}/fake.conf"
    restart = "systemctl daemon-reload; systemctl restart chrony"
    hosts.on(name, "sh", "-c", f"{unit}; {restart}")
    try:
        yield
    finally:
        hosts.on(name, "sh", "-c", f"rm -r {FOLDER}; {restart}")


def sources(hosts: Hosts, name: str) -> list[str]:
    """The addresses that a host asks for the time."""
    lines = hosts.on(name, "chronyc", "-n", "-c", "sources").splitlines()
    return [line.split(",")[2] for line in lines]


def synchronise(hosts: Hosts, mode: str) -> Outcome:
    hosts.variables |= {"time_sync_mode": mode, "time_sync_wait_seconds": 6}
    return hosts.play("setup", "--tags", "time_sync")


def test_in_the_mode_public_every_host_asks_the_sites_server(hosts: Hosts) -> None:
    assert [sources(hosts, name) for name in hosts.names] == [[ADDRESSES["clock"]]] * len(hosts.names)
    with wrong_clock(hosts, "node3"):
        done = synchronise(hosts, "public")
    assert done.status != 0
    assert "node3: its clock is +1.2" in done.text
    assert "s from 10.77.0.20; the clocks of the cluster are 1.2" in done.text


def test_in_the_mode_head_the_head_asks_and_serves_the_others(hosts: Hosts) -> None:
    done = synchronise(hosts, "head")
    assert done.status == 0, done.text
    assert "clocks agree within 0.00" in done.text
    assert sources(hosts, "node1") == [ADDRESSES["clock"]]
    assert [sources(hosts, name) for name in hosts.names[1:]] == [[ADDRESSES["node1"]]] * len(hosts.names[1:])


def test_in_the_mode_isolated_the_others_follow_the_head_which_asks_no_one(hosts: Hosts) -> None:
    done = synchronise(hosts, "isolated")
    assert done.status == 0, done.text
    assert sources(hosts, "node1") == []
    assert [sources(hosts, name) for name in hosts.names[1:]] == [[ADDRESSES["node1"]]] * len(hosts.names[1:])
