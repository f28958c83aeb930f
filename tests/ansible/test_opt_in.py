"""What setup does only where it is asked to, on a host whose kernel and GPUs are files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import Hosts, run
from tests.node.trees import FOLDER, unpack

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "/srv/machine"
RECLAIM = "/proc/sys/vm/zone_reclaim_mode"
TREE = f"@ {RECLAIM}\n0\n@ /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor\npowersave\n= findings\n"
CHOICES: dict[str, Any] = {
    "gpu_root": MACHINE,
    "gpu_install": ["driver"],
    # A package that lies in apt's cache stands for the driver's.
    "gpu_packages": {"debian": {"driver": ["nftables"]}},
    "tuning_root": MACHINE,
    "tuning_enabled": True,
}
PARTS = ("--tags", "tuning,gpu")
ROLES = ["tuning", "gpu"]


@pytest.fixture(scope="module")
def tuned(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A host, with a folder that stands for a machine with an old driver."""
    hosts = Hosts(tmp_path_factory.mktemp("tuned"), ["node4"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.variables |= CHOICES
    hosts.start("node4")
    unpack((FOLDER / "old-driver.txt").read_text(), hosts.folder / "machine")
    unpack(TREE, hosts.folder / "machine")
    done = run("docker", "cp", str(hosts.folder / "machine"), f"{hosts.container('node4')}:{MACHINE}")
    assert done.returncode == 0, done.stderr
    return hosts


def state(hosts: Hosts) -> tuple[str, str, str, str]:
    """Held packages, values of the kernel that stands there, and systemd's limit."""
    governor = f"{MACHINE}/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    return (
        hosts.on("node4", "apt-mark", "showhold"),
        hosts.on("node4", "cat", f"{MACHINE}{RECLAIM}"),
        hosts.on("node4", "cat", governor),
        hosts.on("node4", "systemctl", "show", "--property=DefaultLimitMEMLOCK"),
    )


@pytest.mark.soak
def test_what_is_asked_for_is_set_and_held_and_teardown_puts_everything_back(tuned: Hosts) -> None:
    before, traces = state(tuned), tuned.traces("node4")
    done = tuned.play("setup", *PARTS, "--check")
    assert (done.status, state(tuned)) == (0, before), done.text
    done = tuned.play("setup", *PARTS)
    assert done.status == 0, done.text
    limit = "DefaultLimitMEMLOCK=infinity\n"
    assert state(tuned) == ("nftables\n", "1\n", "performance\n", limit)
    assert "persistence mode is off for GPU 0-3" in done.text
    done = tuned.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text
    done = tuned.play("verify", verify_roles=ROLES)
    assert done.status == 0, done.text
    tuned.on("node4", "sh", "-c", f"echo 0 >{MACHINE}{RECLAIM}; systemctl restart muster-tuning")
    assert tuned.on("node4", "cat", f"{MACHINE}{RECLAIM}") == "1\n"
    done = tuned.play("teardown")
    assert (done.status, state(tuned)) == (0, before), done.text
    after = tuned.traces("node4")
    assert (traces - after, after - traces) == (set(), set())
    done = tuned.play("verify", verify_state="absent", verify_roles=ROLES)
    assert done.status == 0, done.text
