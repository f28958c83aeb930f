"""Hosts of Debian 12 train in environments of Python's own, from an index or from wheels that are brought.

Such an environment is for hosts whose distribution has no PyTorch that is new enough.
"""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import shutil
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import NETWORK, ROOT, Hosts, run
from tests.ansible.test_setup import RANKS, launch

pytestmark = pytest.mark.soak

RELEASE = "bookworm"
WHEELS = ROOT / "build" / f"wheelhouse-{RELEASE}"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own
GATEWAY = f"{NETWORK}.1"  # this machine, as the hosts see it
NOWHERE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}  # discard: nobody listens
FAB = (sys.executable, "-m", "fabric", "--search-root", str(ROOT))
SUMMARY = r"accuracy=0\.\d+ ranks={0} hosts={0} backend=gloo launcher={1} seconds=\S+"


def as_before(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    """Whether the hosts are as they were before any setup."""
    after = {name: hosts.traces(name) for name in hosts.names}
    assert {name: bare[name] ^ found for name, found in after.items()} == {name: set() for name in after}


@pytest.fixture(scope="module")
def hosts(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two bare hosts, whose stack is to be an environment."""
    hosts = Hosts(tmp_path_factory.mktemp("venv"), ["node4", "node5"], release=RELEASE)
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.variables |= {"muster_stack": "venv", "venv_disk_free_mb": 2000}
    hosts.compose("build", "--quiet", "node4")
    hosts.start(*hosts.names)
    return hosts


@pytest.fixture(scope="module")
def bare(hosts: Hosts) -> dict[str, set[str]]:
    """The traces of the hosts before any setup."""
    return {name: hosts.traces(name) for name in hosts.names}


@pytest.fixture
def index_and_wheels(hosts: Hosts, index: str, wheels: Path) -> Iterator[Hosts]:
    """The head reaches an index; the other host reaches none, and is brought the wheels."""
    ways: dict[str, dict[str, object]] = {
        "node4": {"venv_index": index, "venv_torch_index": index},
        "node5": {"venv_wheelhouse": str(wheels), "venv_environment": NOWHERE},
    }
    folder = hosts.folder / "host_vars"
    folder.mkdir()
    for name, variables in ways.items():
        (folder / f"{name}.yml").write_text(json.dumps(variables))  # JSON is YAML
    yield hosts
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels(hosts: Hosts) -> Path:
    """The wheels that these hosts need, kept from run to run.

    A site may have PyTorch for CPUs where pip looks anyway, and be unable to reach PyTorch's own index.
    """
    pinned = json.loads((ROOT / "docker/versions.json").read_text())["wheels"]["torch"]
    listed = run(sys.executable, "-m", "pip", "index", "versions", "torch").stdout
    torch_index = "" if re.search(rf"\b{re.escape(pinned)}\+cpu\b", listed) else TORCH_INDEX
    done = hosts.play("wheelhouse", venv_wheelhouse=str(WHEELS), venv_torch_index=torch_index)
    assert done.status == 0, done.text
    return WHEELS


@pytest.fixture(scope="module")
def index(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index that the hosts reach (PEP 503, and PEP 658 so that no wheel is read for its metadata)."""
    folder = tmp_path_factory.mktemp("index")
    for wheel in wheels.glob("*.whl"):
        name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        page = folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        (page.parent / wheel.name).symlink_to(wheel)
        with zipfile.ZipFile(wheel) as archive:
            found = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
            (metadata,) = found  # what a package has vendored is deeper
            (page.parent / f"{wheel.name}.metadata").write_bytes(archive.read(metadata))
        with page.open("a") as text:
            link = html.escape(wheel.name)
            text.write(f'<a href="{link}" data-core-metadata="true">{link}</a>\n')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((GATEWAY, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://reader:hush@{GATEWAY}:{server.server_address[1]}/simple"
        server.shutdown()


def test_hosts_train_in_venvs(index_and_wheels: Hosts, tmp_path: Path, bare: dict[str, set[str]]) -> None:
    hosts = index_and_wheels
    done = hosts.play("setup")
    assert done.status == 0, done.text
    assert "hush" not in done.text
    for name in hosts.names:
        assert "Build the environment, try it, and put it in use" in " ".join(done.changes(name))
    is_verified(hosts)
    checked = run(*FAB, "check", "--hosts", str(hosts.hosts_file), timeout=300, cwd=tmp_path)
    assert "torch" in checked.stdout, checked.stdout + checked.stderr
    trains(hosts, tmp_path, "mpirun")
    trains(hosts, tmp_path, "torchrun")
    runs_detached(hosts, tmp_path)
    done = hosts.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text
    done = hosts.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    done = hosts.play("verify", verify_state="absent")
    assert done.status == 0, done.text
    as_before(hosts, bare)
    assert not hosts.muster.exists() or list(hosts.muster.iterdir()) == []


def test_hosts_without_an_index_are_told_before_a_change(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    hosts.variables |= {"venv_environment": NOWHERE}
    done = hosts.play("setup", venv_torch_index=TORCH_INDEX)
    assert done.status != 0
    assert f"node5: it cannot have the packages from {TORCH_INDEX} and PyPI" in done.text
    assert "muster wheelhouse FOLDER, then muster setup -- -e venv_wheelhouse=FOLDER" in done.text
    as_before(hosts, bare)


def test_the_python_of_an_environment_that_is_removed_is_not_started_any_more(hosts: Hosts) -> None:
    hosts.muster.mkdir(exist_ok=True)
    named = hosts.muster / "pythons"
    named.write_text("node4 .muster-venv/current/bin/python\n")
    done = hosts.play("venv", "--limit", "node5", venv_state="absent")
    assert done.status == 0, done.text
    assert named.exists()  # node4 keeps its environment
    done = hosts.play("venv", venv_state="absent")
    assert done.status == 0, done.text
    assert not named.exists()


def is_verified(hosts: Hosts) -> None:
    done = hosts.play("verify")
    assert done.status == 0, done.text
    assert {check["id"] for check in hosts.checks()} >= {"venv.environment", "venv.stack", "ssh_trust.limits"}


def trains(hosts: Hosts, folder: Path, launcher: str) -> None:
    """Check that they train, with a rank on each: each rank spends seconds to import PyTorch."""
    one_each = hosts.folder / "one-each.txt"  # beside the keys
    one_each.write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    words = ("--hosts", str(one_each), "--launcher", launcher, "--runs", str(folder / launcher))
    done = launch(hosts, ROOT, *words, "--args=--epochs 1 --limit 256")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(SUMMARY.format(len(hosts.names), launcher), done.stdout.splitlines()[-1])


def runs_detached(hosts: Hosts, folder: Path) -> None:
    """Check a job that goes on without this machine."""
    (folder / "ranks.py").write_text(RANKS)
    detached = launch(hosts, folder, "--detach", "--script", "ranks.py")
    assert detached.returncode == 0, detached.stdout + detached.stderr
    job = re.findall(r"muster attach (\S+)", detached.stdout)[-1]
    attached = run(*FAB, "attach", job, "--hosts", str(hosts.hosts_file), timeout=300, cwd=folder)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    log = "".join(path.read_text() for path in (folder / "runs" / job / "logs").glob("rank-*.out"))
    assert [log.count(f"sum 6 on {name}") for name in hosts.names] == [2, 2]
