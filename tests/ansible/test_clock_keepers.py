"""A clock that another program than chrony keeps: how far it may be off, and whether setup leaves it alone.

The answers have the form of each program's own; those of timesyncd, PTP and ntpd were written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import ADDRESSES, run
from tests.ansible.programs import loaded, module
from tests.ansible.rendering import render_value
from tests.ansible.test_observe import program, programs
from tests.ansible.test_problems import SEEN

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts

__all__ = ["programs"]
measure = module("time_sync", "measure")

CHRONY = "A29FC87B,162.159.200.123,4,1795337631.9,{},-0.0001,0.0002,-3.1,0.0,0.1,0.012,0.003,64.2,Normal"
CLOUD = "50484330,PHC0,2,1795337631.930630095,0.000002,0.0,0.0,0.0,0.0,0.0,0.00001,0.00002,8.0,Normal"
# leap, version, mode, stratum, precision, root delay and dispersion, reference; times; spike, packets, jitter
TIMESYNCD: list[Any] = [0, 4, 4, 2, -25, 400, 300, [169, 254, 169, 123]]
TIMES = [1795337631_000_000, 1795337631_000_100, 1795337631_000_120, 1795337631_000_420]  # sent ... arrived
PTP = """sending: GET TIME_STATUS_NP
sending: GET CURRENT_DATA_SET
\t98039b.fffe.6eb1a3-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP
\t\tmaster_offset              -250
\t\tgmPresent                  {}
\t\tgmIdentity                 ec4670.fffe.0a9e2b
\t98039b.fffe.6eb1a3-0 seq 0 RESPONSE MANAGEMENT CURRENT_DATA_SET
\t\toffsetFromMaster -250.0
\t\tmeanPathDelay    1000.0
"""
NTPD = """associd=0 status=0615 leap_none, sync_ntp, 1 event, clock_sync,
version="ntpd ntpsec-1.2.2", processor="x86_64", leap={leap}, stratum=3, precision=-23, rootdelay=1.200,
rootdisp=2.400, refid=192.0.2.5, reftime=ec9c1d7f.0, offset=-0.500, frequency=-3.1, sys_jitter=0.2
"""


def keeps(
    folder: Path,
    *,
    synchronised: str = "yes",
    message: list[Any] | None = None,
    ptp: str = "",
    ntpd: str = "",
    chrony: str = "",
) -> None:
    """Make the programs of a host whose clock is kept so; those that are not there fail."""
    names = {"pmc": ptp, "ntpq": ntpd, "timedatectl": synchronised}
    names |= {"systemctl": "active" if message else "", "busctl": json.dumps({"data": message or []})}
    if chrony:
        names["chronyc"] = chrony
    for name, text in names.items():
        program(folder, name, f"cat <<'END'\n{text}\nEND" if text else "exit 1")


def timesyncd(**changes: Any) -> list[Any]:
    return [
        changes.get("leap", 0),
        *TIMESYNCD[1:],
        *TIMES,
        changes.get("spike", False),
        changes.get("packets", 9),
        50,
    ]


@pytest.mark.parametrize(
    ("host", "offset", "margin", "source"),
    [
        ({"chrony": CHRONY.format("-0.0004")}, 0.0004, 0.009, "162.159.200.123"),
        ({"chrony": CLOUD}, -0.000002, 0.000025, "PHC0"),
        # 420 us there and back, of which 20 at the server: it lags by (100 - 300) / 2
        ({"message": timesyncd()}, 0.0001, 300e-6 + 50e-6 + (400e-6 + 400e-6) / 2, "systemd-timesyncd"),
        ({"ptp": PTP.format("true")}, -250e-9, 1e-6, "PTP ec4670.fffe.0a9e2b"),
        ({"ntpd": NTPD.format(leap="00")}, 0.0005, 0.003, "192.0.2.5"),
    ],
    ids=["chrony", "a cloud's hardware clock", "timesyncd", "PTP", "ntpd"],
)
def test_what_keeps_a_clock_says_how_far_it_is_off(
    programs: Path, host: dict[str, Any], offset: float, margin: float, source: str
) -> None:
    keeps(programs, **host)
    clock = measure.measure()
    assert (clock["synchronised"], clock["source"]) == (True, source)
    assert (clock["offset"], clock["margin"]) == (pytest.approx(offset), pytest.approx(margin))


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ({"chrony": CHRONY.format("0").replace("Normal", "Not synchronised")}, "no source yet"),
        ({"chrony": "506 Cannot talk to daemon"}, "chronyd does not answer"),
        ({"message": timesyncd(), "synchronised": "no"}, "nothing keeps this clock"),
        ({"message": timesyncd(leap=3)}, "an unknown program keeps this clock"),
        ({"message": timesyncd(spike=True)}, "an unknown program keeps this clock"),
        ({"message": timesyncd(packets=0)}, "an unknown program keeps this clock"),
        ({"message": [0, "unknown"]}, "an unknown program keeps this clock"),
        ({"ptp": PTP.format("false")}, "an unknown program keeps this clock"),
        ({"ntpd": NTPD.format(leap="11")}, "an unknown program keeps this clock"),
        ({"ntpd": "ntpq: read: Connection refused"}, "an unknown program keeps this clock"),
    ],
)
def test_a_clock_without_a_keeper_is_not_synced(programs: Path, host: dict[str, Any], reason: str) -> None:
    keeps(programs, **host)
    clock = measure.measure()
    assert (clock["synchronised"], clock["source"]) == (False, reason)


GOOD = {"synchronised": True, "offset": -0.001, "margin": 0.003, "source": "systemd-timesyncd"}


@pytest.mark.parametrize(
    ("clock", "choices", "kept"),
    [
        (GOOD, {}, True),
        (GOOD | {"margin": 0.0045}, {}, False),
        (GOOD | {"margin": 0.0045}, {"time_sync_max_spread": 0.1}, True),
        (GOOD | {"synchronised": False}, {}, False),
        (GOOD, {"time_sync_servers": ["192.0.2.1"]}, False),
        (GOOD, {"time_sync_mode": "head"}, False),
        (GOOD, {"muster_present": ["/etc/chrony/muster.conf"]}, False),
        (None, {}, False),
    ],
    ids=[
        *("within the bound", "beyond it", "a wider bound", "not synchronised", "the site's servers"),
        *("the head's clock", "set up already", "nobody asked"),
    ],
)
def test_a_clock_within_the_bound(clock: dict[str, Any] | None, choices: dict[str, Any], kept: bool) -> None:
    given: dict[str, Any] = {"muster_seen": SEEN | {"packages": [], "clock_is_kept": False}}
    given |= {"muster_present": []} | choices
    if clock:
        given["time_sync_looked"] = {"stdout": json.dumps(clock), "skipped": False}
    given.setdefault("time_sync_max_spread", 0.010)
    assert render_value("time_sync", "time_sync_is_kept", {"node1": {}}, **given) is kept


def test_no_chrony_is_planned_where_another_program_keeps_the_clock() -> None:
    given = {
        "muster_seen": SEEN | {"packages": []},
        "bare_packages": ["python3"],
        "time_sync_max_spread": 0.01,
    }
    looked = {"time_sync_looked": {"stdout": json.dumps(GOOD), "skipped": False}}
    planned = render_value("preflight", "preflight_packages", {"node1": {}}, **given)
    assert sorted(planned) == ["chrony", "python3"]
    assert render_value("preflight", "preflight_packages", {"node1": {}}, **given, **looked) == ["python3"]


STOPPED = {"active": False, "enabled": False, "stale": False}
RUNNING = {"active": True, "enabled": True, "stale": False}


@pytest.mark.parametrize(
    ("chrony", "seen", "present", "remembered"),
    [
        (STOPPED, {}, [], True),
        (RUNNING | {"enabled": False}, {}, [], True),
        (RUNNING, {}, [], False),
        (STOPPED, {"packages": []}, [], False),
        (STOPPED, {"new_packages": {"time_sync": {"installed": ["chrony"]}}}, [], False),
        (STOPPED, {"new_packages": {"chrony": RUNNING}}, [], False),
        (STOPPED, {}, ["/etc/chrony/muster.conf"], False),
    ],
    ids=["stopped", "not enabled", "running", "no chrony", "setup's", "remembered already", "set up already"],
)
def test_a_chrony_that_did_not_run_is_remembered_before_it_is_started(
    chrony: dict[str, bool], seen: dict[str, Any], present: list[str], remembered: bool
) -> None:
    given = {"muster_seen": SEEN | {"units": {"chrony": chrony}} | seen, "muster_present": present}
    found = render_value("time_sync", "time_sync_is_to_remember", {"node1": {}}, **given)
    assert found is remembered


SYSTEMCTL = '[ "$*" = "is-active systemd-timesyncd" ] && exec echo active; exec /usr/bin/systemctl "$@"'


@pytest.mark.soak
def test_a_host_whose_clock_is_kept_stays_without_chrony(newcomer: Hosts, tmp_path: Path) -> None:
    """Its programs are stand-ins: a container's clock is kept by the machine that it runs on."""
    keeps(tmp_path, message=timesyncd())
    program(tmp_path, "systemctl", SYSTEMCTL)
    for name in ("systemctl", "timedatectl", "busctl"):
        copy = ("docker", "cp", str(tmp_path / name), f"{newcomer.container('node5')}:/usr/local/bin/{name}")
        assert run(*copy).returncode == 0
    newcomer.variables |= {"time_sync_servers": []}
    before = newcomer.traces("node5")
    done = newcomer.play("setup", "--tags", "time_sync")
    assert (done.status, done.changed) == (0, 0), done.text
    assert "clocks agree within" in done.text
    assert newcomer.traces("node5") == before
    done = newcomer.play("verify", verify_roles=["time_sync"])
    assert done.status == 0, done.text


STAND_INS = "/usr/local/bin/systemctl /usr/local/bin/timedatectl /usr/local/bin/busctl"
PREPARE = f"""
rm -f {STAND_INS}
apt-get install --yes --no-install-recommends chrony >/dev/null
systemctl disable --now chrony
"""


@pytest.mark.soak
def test_a_chrony_that_was_here_and_did_not_run_is_as_it_was_after_teardown(newcomer: Hosts) -> None:
    newcomer.on("node5", "sh", "-ec", PREPARE)
    states = ("systemctl", "show", "--property=ActiveState,UnitFileState", "chrony")
    before = newcomer.on("node5", *states)
    assert sorted(before.split()) == ["ActiveState=inactive", "UnitFileState=disabled"]
    newcomer.variables |= {"time_sync_servers": [ADDRESSES["clock"]]}
    done = newcomer.play("setup", "--tags", "time_sync")
    assert done.status == 0, done.text
    assert sorted(newcomer.on("node5", *states).split()) == ["ActiveState=active", "UnitFileState=enabled"]
    done = newcomer.play("setup", "--tags", "time_sync")
    assert (done.status, done.changed) == (0, 0), done.text
    done = newcomer.play("teardown")
    assert (done.status, newcomer.on("node5", *states)) == (0, before), done.text


PLAIN = f"""
rm -f {STAND_INS}
apt-get purge --yes chrony >/dev/null
apt-get install --yes --no-install-recommends systemd-timesyncd >/dev/null
"""


@pytest.mark.soak
def test_a_python3_apt_that_setup_installed_goes_before_a_package_comes_back(newcomer: Hosts) -> None:
    newcomer.on("node5", "sh", "-ec", PLAIN)
    newcomer.variables |= {"time_sync_servers": [ADDRESSES["clock"]]}
    done = newcomer.play("setup", "--tags", "time_sync")
    assert done.status == 0, done.text
    # As on a host that had none: there setup installs it with its first package.
    record = "/var/lib/muster/time_sync.json"
    newcomer.on("node5", "sed", "--in-place", 's/"installed": \\[/&"python3-apt", /', record)
    assert "python3-apt" in json.loads(newcomer.on("node5", "cat", record))["installed"]
    done = newcomer.play("teardown")
    assert done.status == 0, done.text
    asked = ("systemd-timesyncd", "chrony", "python3-apt")
    names = [
        name for name in asked if newcomer.on("node5", "dpkg-query", "--status", name).count("ok installed")
    ]
    assert names == ["systemd-timesyncd"]


# -- the comparison of clocks, by the filter of the role time_sync --


clocks = loaded("time_sync/filter_plugins/muster_clocks.py")
ALLOWED = 0.010


def compared(measured: list[dict[str, Any]], head: str = "node1", first: int = 1) -> dict[str, Any]:
    usual = {"synchronised": True, "offset": 0.0, "margin": 0.0, "apart": 0.0, "source": "10.0.0.9"}
    by_name = {f"node{number}": usual | clock for number, clock in enumerate(measured, first)}
    found: dict[str, Any] = clocks.compare(by_name, head, ALLOWED)
    return found


@pytest.mark.parametrize(
    ("apart", "problem"),
    [
        ([0.0, 0.0, 1.25], "node3: its clock is +1.250000 s from most of the others"),
        ([0.0, 1.25], "node2: its clock is +1.250000 s from node1"),
        ([0.0, 1.25, 0.0], "node2: its clock is +1.250000 s from most of the others"),
        ([0.0, -1.25, -1.25], "node1: its clock is +1.250000 s from most of the others"),
        ([0.0, 0.001, -0.001], ""),
    ],
    ids=["one of three", "one of two", "a worker", "the head", "all near the head"],
)
def test_the_clock_that_is_furthest_from_most_is_named(apart: list[float], problem: str) -> None:
    found = compared([{"apart": value, "margin": 9.0} for value in apart])
    assert found["spread"] == pytest.approx(max(apart) - min(apart))
    assert [text[: len(problem)] for text in found["problems"]] == [problem] * bool(problem)


@pytest.mark.parametrize(
    ("margins", "problem"),
    [
        ([0.002, 0.002], ""),
        ([0.001, 0.030], "node2: its clock is +0.000000 s from 10.0.0.9, give or take 0.030000 s; "),
    ],
    ids=["good sources", "a source that is far away"],
)
def test_margins_count_where_the_head_did_not_answer(margins: list[float], problem: str) -> None:
    found = compared([{"margin": margins[0]}, {"margin": margins[1], "apart": None}])
    assert found["spread"] == pytest.approx(sum(margins))
    starts = [problem, "node2: node1 did not answer over NTP"] if problem else []
    assert len(found["problems"]) == len(starts)
    assert all(text.startswith(start) for text, start in zip(found["problems"], starts, strict=True))


def test_a_run_without_the_head_compares_with_it_all_the_same() -> None:
    """With --limit the head may be none of the measured hosts."""
    found = compared([{"apart": 1.25}], first=2)
    assert found["spread"] == pytest.approx(1.25)
    assert found["problems"][0].startswith("node2: its clock is +1.250000 s from the true time")


def test_a_clock_without_a_source_is_named_with_the_remedy() -> None:
    (problem,) = compared([{"synchronised": False, "source": "no source answers"}])["problems"]
    assert problem.startswith("node1: its clock is not synchronised (no source answers)")
    assert problem.endswith("-e time_sync_mode=head")
