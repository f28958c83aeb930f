"""What differs between hosts: everything that was planted, and nothing else."""

from __future__ import annotations

import pytest

from muster.deploy.agent.envs.describe import describe
from muster.deploy.envs.diff import HostDifference, as_text, differences

ALIKE = {
    "Python": "3.13.5",
    "torch": "2.9.0+cu128",
    "torch's CUDA": "12.8",
    "NCCL of torch": "2.27.5",
    "driver": "570.124.06",
    "kernel": "6.1.0-39-amd64",
    "glibc": "glibc 2.41",
    "governor": "performance",
    "locale": "C.UTF-8",
    "time zone": "UTC",
    "limit memlock": "unlimited",
    "limit nofile": "1024 to 524288",
    "variable NCCL_DEBUG": "WARN",
    "variable OMP_PROC_BIND": "true",
    "variable MKL_DYNAMIC": "FALSE",
    "MTU of the default route": "9000",
    "MTU of ib0": "4092",
    "mount /": "ext4",
    "mount /data": "nfs4 from store:/data, ro",
    "package numpy": "2.3.1",
    "package six": "1.17.0",
}
PLANTED = {
    "Python": "3.13.4",
    "torch": "2.8.0+cu128",
    "torch's CUDA": "12.6",
    "driver": "550.54.15",
    "kernel": "6.1.0-37-amd64",
    "glibc": "glibc 2.36",
    "governor": "powersave",
    "locale": "de_DE.UTF-8 (not installed)",
    "time zone": "Europe/Berlin",
    "limit memlock": "8192",
    "variable NCCL_DEBUG": "",
    "variable OMP_PROC_BIND": "false",
    "variable MKL_DYNAMIC": "TRUE",
    "MTU of the default route": "1500",
    "mount /data": "nfs4 from old:/data, ro",
    "package numpy": "1.26.4",
}


def test_hosts_that_are_alike_have_no_differences() -> None:
    found = differences({"node1": ALIKE, "node2": dict(ALIKE), "node3": ALIKE})
    assert found == []
    assert as_text(found, 3) == "nothing differs between 3 hosts\n"


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_difference_is_named_alone(what: str) -> None:
    found = differences({"node1": ALIKE, "node2": {**ALIKE, what: PLANTED[what]}, "node3": ALIKE})
    assert found == [
        HostDifference(what, {ALIKE[what]: ("node1", "node3"), PLANTED[what] or "none": ("node2",)})
    ]


def test_all_planted_differences_are_named_the_stack_first_and_nothing_else() -> None:
    found = differences({"node1": ALIKE, "node2": ALIKE, "node3": {**ALIKE, **PLANTED}})
    assert {difference.what for difference in found} == set(PLANTED)
    lines = as_text(found, 3).splitlines()
    assert len(lines) == len(PLANTED) >= 15
    assert lines[0] == "Python: 3.13.5 on node[1-2]; 3.13.4 on node3"
    assert lines[-1] == "package numpy: 2.3.1 on node[1-2]; 1.26.4 on node3"
    assert "variable NCCL_DEBUG: WARN on node[1-2]; none on node3" in lines


def test_what_only_one_host_has_is_a_difference() -> None:
    found = differences({"node1": ALIKE, "node2": {**ALIKE, "package apex": "0.1"}})
    assert found == [HostDifference("package apex", {"none": ("node1",), "0.1": ("node2",)})]


def test_a_host_describes_its_stack_limits_variables_and_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    known = describe("")
    assert known["variable NCCL_DEBUG"] == "INFO"
    assert (known["locale"], known["time zone"]) == ("C.UTF-8", "Europe/Berlin")
    assert known["package pytest"] == pytest.__version__
    assert known["limit nofile"].split(" to ")[0].isdigit()
    assert {"Python", "torch", "kernel", "glibc", "mount /"} <= known.keys()
    assert describe("") == known
