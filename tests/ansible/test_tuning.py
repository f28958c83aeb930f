"""The kernel's values: set where that is asked for, written down, and put back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ansible.rendering import render, render_value
from tests.ansible.test_observe import module
from tests.ansible.test_problems import SEEN

tune = module("tuning", "tune")
RECLAIM, THP = "/proc/sys/vm/zone_reclaim_mode", "/sys/kernel/mm/transparent_hugepage/enabled"
GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
FIRST, SECOND = (GOVERNORS.replace("[0-9]*", str(number)) for number in (0, 1))
WANTED = {RECLAIM: "1", THP: "always", GOVERNORS: "performance", "/proc/sys/sunrpc/none": "128"}
BEFORE = {RECLAIM: "0\n", THP: "madvise\n", FIRST: "powersave\n", SECOND: "schedutil\n"}


@pytest.fixture
def host(tmp_path: Path) -> Any:
    """A host with two processors, and no sunrpc."""
    for path, content in BEFORE.items():
        place = tmp_path / "root" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return tune.Host(str(tmp_path / "root"), tmp_path / "record" / "tuning.json")


def now(host: Any) -> dict[str, str]:
    return {path: host.read(path) for path in BEFORE}


def test_values_are_set_where_they_are_there_and_put_back_as_they_were(host: Any) -> None:
    before = now(host)
    assert host.differs(WANTED)
    host.apply(WANTED)
    assert now(host) == {RECLAIM: "1", THP: "always", FIRST: "performance", SECOND: "performance"}
    assert not host.differs(WANTED)
    host.remove()
    assert now(host) == before
    assert not host.record.exists()


def test_a_value_that_the_kernel_bounds_is_said_once_and_put_back(
    host: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, write = now(host), host.write
    monkeypatch.setattr(host, "write", lambda path, new: write(path, "3" if new == "7" else new))
    host.apply(WANTED | {RECLAIM: "7"})
    assert capsys.readouterr().out == f"{RECLAIM}: the kernel keeps 3 instead of 7\n"
    assert not host.differs(WANTED | {RECLAIM: "7"})
    assert host.differs(WANTED | {RECLAIM: "8"})
    write(RECLAIM, "0")  # as the kernel starts
    assert host.differs(host.recorded()["wanted"])
    host.apply(host.recorded()["wanted"])
    host.remove()
    assert now(host) == before


def test_what_was_there_first_outlives_other_wishes_and_a_restart(host: Any) -> None:
    before = now(host)
    host.apply(WANTED)
    host.write(RECLAIM, "0")  # as the kernel starts
    assert host.differs(host.recorded()["wanted"])
    host.apply(host.recorded()["wanted"])
    host.apply({RECLAIM: "3"})
    assert now(host) == before | {RECLAIM: "3"}
    assert host.recorded() == {"wanted": {RECLAIM: "3"}, "set": {RECLAIM: "3"}, "before": {RECLAIM: "0"}}
    host.remove()
    assert now(host) == before


def test_what_somebody_else_has_changed_since_stays(host: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host.apply(WANTED)
    host.write(RECLAIM, "7")
    host.remove()
    assert host.read(RECLAIM) == "7"
    assert "zone_reclaim_mode stays 7: it was changed since setup set it to 1" in capsys.readouterr().out


def test_a_run_that_was_cut_short_is_taken_back(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = now(host), host.write

    def cut_short(path: str, new: str) -> None:
        write(path, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(host, "write", cut_short)
    with pytest.raises(KeyboardInterrupt):
        host.apply(WANTED)
    monkeypatch.undo()
    assert now(host) != before
    host.remove()
    assert now(host) == before


def test_a_value_that_the_kernel_refuses_is_named(host: Any) -> None:
    (host.root / RECLAIM.lstrip("/")).unlink()
    (host.root / RECLAIM.lstrip("/")).mkdir()
    with pytest.raises(SystemExit, match=rf"{RECLAIM}: cannot be set to 1: .*; take it out of the role's"):
        host.write(RECLAIM, "1")


def test_of_several_words_the_chosen_one_is_the_value() -> None:
    assert tune.value("always [madvise] never\n") == "madvise"
    assert tune.value("4096\t131072 6291456\n") == "4096 131072 6291456"


INVENTORY: dict[str, dict[str, Any]] = {"node1": {"addresses": ["10.0.0.1"]}}


def test_the_values_are_those_of_azures_images_unless_they_are_told_otherwise() -> None:
    wanted = render_value("tuning", "tuning_wanted", INVENTORY, muster_seen=SEEN)
    assert wanted == {
        RECLAIM: "1",
        "/proc/sys/net/ipv4/neigh/default/gc_thresh1": "4096",
        "/proc/sys/net/ipv4/neigh/default/gc_thresh2": "8192",
        "/proc/sys/net/ipv4/neigh/default/gc_thresh3": "16384",
        "/proc/sys/sunrpc/tcp_max_slot_table_entries": "128",
        GOVERNORS: "performance",
    }
    choices = {
        "tuning_sysctl": {"net.core.rmem_max": 1 << 31},
        "tuning_governor": "",
        "tuning_hugepages": 64,
        "tuning_transparent_hugepages": "always",
    }
    assert render_value("tuning", "tuning_wanted", INVENTORY, muster_seen=SEEN, **choices) == {
        "/proc/sys/net/core/rmem_max": str(1 << 31),
        "/proc/sys/vm/nr_hugepages": "64",
        THP: "always",
    }


def test_nothing_is_tuned_unless_it_is_asked_for() -> None:
    tuned = {"new_packages": {"tuning": {"set": {RECLAIM: "1"}}}}
    names = ("tuning_enabled", "tuning_is_to_go")
    fresh = [render_value("tuning", name, INVENTORY, muster_seen=SEEN, muster_present=[]) for name in names]
    assert fresh == [False, False]
    before = [
        render_value("tuning", name, INVENTORY, muster_seen=SEEN | tuned, muster_present=[]) for name in names
    ]
    assert before == [False, True]


def test_the_unit_and_the_limits_are_what_systemd_reads() -> None:
    unit = render("tuning", "muster-tuning.service.j2", INVENTORY).splitlines()
    assert "ExecStart=/usr/bin/python3 /var/lib/muster/tune.py again /" in unit
    assert "After=systemd-sysctl.service systemd-modules-load.service" in unit
    limits = render("tuning", "limits.conf.j2", INVENTORY).splitlines()
    assert limits[1:] == ["[Manager]", "DefaultLimitMEMLOCK=infinity"]
