"""The differences of systems: one file for each, and what setup would write on hosts where it never ran.

The facts of Enterprise Linux are written by hand, from os-release(5) and the units of its packages.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.ansible.bare_hosts import BOOKS
from tests.ansible.rendering import SYSTEMS, problems_of, render, render_value, system_of
from tests.ansible.test_problems import SEEN

LIKE = {
    "rocky": ["rhel", "centos", "fedora"],
    "almalinux": ["rhel", "centos", "fedora"],
    "ubuntu": ["debian"],
}
IDLE = {"active": False, "enabled": False, "stale": False}
RUNS = {"active": True, "enabled": True, "stale": False}
ROCKY: dict[str, Any] = SEEN | {
    "os": {"id": "rocky", "version": "9.5", "like": LIKE["rocky"]},
    "python": "3.9.21",
    "selinux": True,
    "engine": {"command": "", "kind": "", "answers": False, "version": "", "cdi": False, "image": None},
    "packages": ["chrony"],
    "units": {"sshd": RUNS, "chronyd": RUNS, "docker": IDLE, "muster-undo-sshd.timer": IDLE},
    "operator": {"client": "192.0.2.9", "login": "root"},
    "container": False,
    "may_set_clock": True,
    "clock_is_kept": True,
}
INVENTORY: dict[str, dict[str, Any]] = {"node1": {"addresses": ["10.0.0.1"]}}


def value(role: str, name: str, **variables: object) -> Any:
    return render_value(role, name, INVENTORY, muster_seen=ROCKY, **variables)


@pytest.mark.parametrize(
    ("system", "version", "packages", "engine", "pool"),
    [
        ("debian", "12", "apt", ["docker.io"], "debian"),
        ("debian", "13", "apt", ["docker.io", "docker-cli"], "debian"),
        ("ubuntu", "22.04", "apt", ["docker.io"], "ubuntu"),
        ("ubuntu", "26.04", "apt", ["docker.io"], "ubuntu"),
        ("rocky", "9.5", "dnf", ["podman", "podman-docker"], "rhel"),
        ("almalinux", "10.0", "dnf", ["podman", "podman-docker"], "rhel"),
        ("../group_vars/all", "1", "apt", ["docker.io", "docker-cli"], "debian"),
    ],
)
def test_a_system_has_the_names_of_those_that_it_is_like_and_its_own(
    system: str, version: str, packages: str, engine: list[str], pool: str
) -> None:
    found = system_of({"id": system, "version": version, "like": LIKE.get(system, [])})
    assert (found["packages"], found["engine"]["packages"]) == (packages, engine)
    assert found["clock"]["pool"] == f"2.{pool}.pool.ntp.org"
    assert ("python3-torch" in found["stack"]) is (pool == "debian")


def test_all_systems_have_the_same_names() -> None:
    def shape(value: Any) -> Any:
        return {key: shape(each) for key, each in value.items()} if isinstance(value, dict) else type(value)

    shapes = [shape(system) for system in every_system()]
    assert shapes == [shapes[0]] * len(shapes)


def every_system() -> list[dict[str, Any]]:
    """What each file of a system leads to."""
    parts = (path.stem.partition("-") for path in SYSTEMS.glob("*.yml"))
    releases = ({"id": name, "version": version, "like": LIKE.get(name, [])} for name, _, version in parts)
    return [system_of(release) for release in releases]


def test_the_one_probe_asks_for_what_any_system_has() -> None:
    asked = value("preflight", "preflight_question")
    for system in every_system():
        clock, engine = system["clock"], system["engine"]
        folder = f"/etc/systemd/system/{clock['unit']}.service.d"
        assert {system["ssh"]["unit"], clock["unit"], engine["unit"]} - {""} <= asked["units"].keys()
        assert {clock["configuration"], clock["candidate"], f"{folder}/muster.conf"} <= {*asked["files"]}
        assert {folder, *engine["folders"]} <= {*asked["folders"]}
        assert {*engine["groups"]} <= {*asked["groups"]}
        assert {*system["stack"], *engine["packages"]} <= {*asked["packages"]}


def test_the_tasks_of_roles_name_no_distribution() -> None:
    names = r"debian|ubuntu|rocky|almalinux|rhel|\bsystemctl reload ssh\b|name: (ssh|chrony|docker)$"
    parts = [path for part in ("tasks", "handlers") for path in (BOOKS / "roles").glob(f"*/{part}/*.yml")]
    lines = [
        f"{path.relative_to(BOOKS)}: {line}"
        for path in parts
        for line in path.read_text().splitlines()
        if re.search(names, line, re.IGNORECASE) and not line.lstrip().startswith("#")
    ]
    assert len(parts) > 20 and lines == []


def test_enterprise_linux_is_fit_and_gets_a_python_that_pytorch_runs_on() -> None:
    choices: dict[str, Any] = {"muster_stack": "venv", "muster_known": {}, "muster_seen": ROCKY}
    assert problems_of(INVENTORY, **choices) == []
    pins = {"venv_pins": {"python": "3.10"}}
    assert value("venv", "venv_python", **pins) == "3.12"
    newer = ROCKY | {"python": "3.12.9"}
    own = render_value("venv", "venv_python", INVENTORY, muster_seen=newer, **pins)
    assert own == "/usr/bin/python3"


def test_enterprise_linux_has_its_own_units_and_paths() -> None:
    unit = render("time_sync", "unit.conf.j2", INVENTORY, muster_seen=ROCKY)
    assert 'Environment="OPTIONS=-F 2 -f /etc/chrony-muster.conf"' in unit
    assert value("time_sync", "time_sync_traces") == [
        "/etc/chrony-muster.conf",
        "/etc/.chrony-muster.conf",
        "/etc/systemd/system/chronyd.service.d/muster.conf",
    ]
    assert value("ssh_trust", "ssh_trust_undo_now").endswith("systemctl reload sshd")


def test_dnf_records_and_removes_only_what_setup_installed() -> None:
    recorded = {"installed": ["podman"], "replaced": [], "folders": [], "groups": []}
    seen = ROCKY | {"new_packages": {"container_engine": recorded}, "packages": ["chrony", "podman"]}
    given: dict[str, Any] = {
        "muster_seen": seen,
        "packages_owner": "container_engine",
        "packages_names": ["podman", "podman-docker"],
    }
    assert render_value("packages", "packages_of_dnf", INVENTORY, **given) == ["podman", "podman-docker"]
    assert render_value("packages", "packages_present", INVENTORY, **given) == ["podman"]
    first = given | {"muster_seen": ROCKY | {"packages": ["chrony", "podman"]}}  # the owner's podman
    assert render_value("packages", "packages_of_dnf", INVENTORY, **first) == ["podman-docker"]


def test_a_node_container_on_enterprise_linux_is_podmans_and_may_read_its_volumes() -> None:
    assert value("container_engine", "container_engine_wanted") == ["podman", "podman-docker"]
    assert value("container_engine", "container_engine_needs_restart") is False
    unit = render("node", "muster-node.service.j2", INVENTORY, muster_seen=ROCKY, muster_stack="node")
    assert "docker.service" not in unit
    assert "--security-opt label=disable" in unit
    debian = render("node", "muster-node.service.j2", INVENTORY, muster_seen=SEEN, muster_stack="node")
    assert "Requires=docker.service" in debian and "label=disable" not in debian
