"""The three ways to keep clocks together, and that a clock which is wrong is named with its figure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import ADDRESSES
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts, Outcome

pytestmark = pytest.mark.soak

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
CHRONYD = "/usr/sbin/chronyd"
AHEAD = f"LD_PRELOAD={FAKETIME} FAKETIME=+1.25s FAKETIME_DONT_FAKE_MONOTONIC=1"
# A server of the site whose clock is 1.25 s ahead, beside the good one.
FALSE_SERVER = f"""
printf '%s\\n' 'port 1123' 'cmdport 0' 'bindcmdaddress /' 'pidfile /run/false.pid' >/run/false.conf
printf '%s\\n' 'local stratum 8' allow >>/run/false.conf
{AHEAD} {CHRONYD} -x -f /run/false.conf
"""


@contextlib.contextmanager
def wrong_clock(hosts: Hosts, name: str) -> Iterator[None]:
    """The clock that every chronyd sees on a host is 1.25 s ahead, and so is the time that it serves."""
    script = f'#!/bin/sh\\n{AHEAD} exec {CHRONYD}.real "$@"\\n'
    make = f"mv {CHRONYD} {CHRONYD}.real; printf '{script}' >{CHRONYD}; chmod 755 {CHRONYD}"
    hosts.on(name, "sh", "-c", make)
    restart(hosts, name)
    try:
        yield
    finally:
        hosts.on(name, "mv", f"{CHRONYD}.real", CHRONYD)
        restart(hosts, name)


def restart(hosts: Hosts, name: str) -> None:
    hosts.on(name, "sh", "-c", "systemctl daemon-reload; systemctl restart chrony")


def sources(hosts: Hosts, name: str) -> list[str]:
    """The addresses that a host asks for the time."""
    lines = hosts.on(name, "chronyc", "-n", "-c", "sources").splitlines()
    return [line.split(",")[2] for line in lines]


def follows(hosts: Hosts, name: str, address: str) -> bool:
    """Whether a host has a clock, that of this address."""
    return hosts.on(name, "chronyc", "-n", "-c", "tracking").split(",")[1:2] == [address]


@pytest.fixture(scope="module", autouse=True)
def one_clock_again(hosts: Hosts, joined: Outcome) -> Iterator[None]:
    """Three hosts, because two clocks outvote another; they ask the site's server before and after."""
    yield
    hosts.variables.pop("time_sync_mode", None)
    assert hosts.play("setup", "--tags", "time_sync", time_sync_mode="public").status == 0


def synchronise(hosts: Hosts, mode: str, seconds: int = 60) -> Outcome:
    hosts.variables |= {"time_sync_mode": mode}
    return hosts.play("setup", "--tags", "time_sync", time_sync_wait_seconds=seconds)


def test_in_the_mode_public_every_host_asks_the_sites_server(hosts: Hosts) -> None:
    assert [sources(hosts, name) for name in hosts.names] == [[ADDRESSES["clock"]]] * len(hosts.names)
    with wrong_clock(hosts, "node3"):
        # A host without a source is not wrong.
        wait_until(lambda: follows(hosts, "node3", ADDRESSES["clock"]), "a source for node3", patience=200.0)
        done = synchronise(hosts, "public", seconds=8)
    assert done.status != 0
    assert "node3: its clock is +1.2" in done.text
    assert "s from most of the others; the clocks of the cluster are 1.2" in done.text


def test_a_host_whose_source_is_as_wrong_as_its_clock_is_seen_too(hosts: Hosts) -> None:
    before = dict(hosts.variables)
    hosts.on("clock", "sh", "-c", FALSE_SERVER)
    good, bad = ADDRESSES["clock"], f"{ADDRESSES['clock']} port 1123"
    hosts.variables["time_sync_servers"] = (
        f"{{{{ ['{bad}' if inventory_hostname == 'node3' else '{good}'] }}}}"
    )
    with wrong_clock(hosts, "node3"):
        done = synchronise(hosts, "public", seconds=20)
    hosts.on("clock", "sh", "-c", "kill $(cat /run/false.pid)")
    hosts.variables |= before
    assert done.status != 0
    assert "node3: its clock is +1.2" in done.text
    done = synchronise(hosts, "public")
    assert done.status == 0, done.text


def test_in_the_mode_head_the_head_asks_and_serves_the_others(hosts: Hosts) -> None:
    done = synchronise(hosts, "head")
    assert done.status == 0, done.text
    assert "clocks agree within 0.00" in done.text
    assert sources(hosts, "node1") == [ADDRESSES["clock"]]
    assert [sources(hosts, name) for name in hosts.names[1:]] == [[ADDRESSES["node1"]]] * len(hosts.names[1:])


def test_in_the_mode_isolated_the_others_follow_the_head_and_show_when_it_is_wrong(hosts: Hosts) -> None:
    done = synchronise(hosts, "isolated")
    assert done.status == 0, done.text
    assert sources(hosts, "node1") == []
    assert [sources(hosts, name) for name in hosts.names[1:]] == [[ADDRESSES["node1"]]] * len(hosts.names[1:])
    with wrong_clock(hosts, "node1"):  # whose followers have not asked it again yet
        done = synchronise(hosts, "isolated", seconds=8)
    assert done.status != 0
    assert "node1: its clock is +1.2" in done.text
    assert "s from most of the others; the clocks of the cluster are 1.2" in done.text
