"""A job on its way to its head, and the driver that waits for it there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from muster.deploy.core.connect.bootstrap import BOOTSTRAP
from muster.deploy.core.connect.transports.openssh import OpenSshPipe, command
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.driver_on_host import own_code, stored
from muster.deploy.core.job.events import Waiting
from muster.deploy.core.job.feature import Start
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import end_unstarted
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.plan.source_tree import Tree, TreeFile, scan
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.core.wire.store import Store
from muster.deploy.features.all_options import OPTIONS
from muster.deploy.features.detach import detached_main
from tests.damage import DAMAGE
from tests.unit.tells import TELLS, TellOptions
from tests.unit.test_attempts import PLAN, Connected


def make_job() -> LaunchSpec:
    return LaunchSpec(
        job="j",
        program=Program(script="a b.py", args=("$x",)),
        env=(("A", "1\n2"),),
        hosts=hostfile.parse("node[1-2] slots=2 user=ml"),
        tree=Tree(Path("/work/a b"), "x", (TreeFile("a", False, "00"), TreeFile("l", False, "", link="a"))),
        library=Tree(Path("/opt/muster"), ".", (TreeFile("train/demo/main.py", False, "01"),), "muster"),
    )


def test_a_job_arrives_as_it_left() -> None:
    assert LaunchSpec.of_json(make_job().as_json(), OPTIONS) == make_job()


@pytest.mark.parametrize(
    ("python", "started"),
    [("", [None, ".venv/bin/python", "python3"]), ("python3.12", [None] + ["python3.12"] * 2)],
)
def test_the_driver_on_the_head_uses_the_pythons_of_the_job(
    monkeypatch: pytest.MonkeyPatch, python: str, started: list[str | None]
) -> None:
    """A relative path begins at a home folder, and the head's driver is in another."""
    job = replace(
        make_job(), python=python, pythons={"node2": ".venv/bin/python"}, hosts=hostfile.parse("node[1-3]")
    )
    monkeypatch.setattr(detached_main, "LocalPipe", lambda python: python)
    monkeypatch.setattr(detached_main, "OpenSshPipe", lambda host, python, *, head: python)
    ways: list[object] = [
        detached_main.opener_of(LaunchSpec.of_json(job.as_json(), OPTIONS))(host) for host in job.hosts
    ]
    assert ways == started


def test_an_invalid_job_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        LaunchSpec.of_json({**make_job().as_json(), "launcher": "sh"}, OPTIONS)


@pytest.fixture
def word(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where the first word of a driver in this process can be read."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w") as out, Path(os.devnull).open("w", encoding="ascii") as log:
        # Not those of sys itself: pytest sets them again for each phase of a test.
        monkeypatch.setattr(detached_main, "sys", SimpleNamespace(stdout=out, stderr=log))
        yield reader
    with suppress(OSError):  # a test may have closed it
        os.close(reader)


def fetching(start: Start, *given: object) -> LaunchPlan:
    """Hosts that lack the image, and cannot fetch it."""
    start.emit(Waiting("node2: fetching it"))
    raise MusterError("docker pull: manifest unknown", host="node2")


def drive_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch, tell: str = "") -> None:
    (folder / "run").mkdir(parents=True)
    monkeypatch.setattr("muster.deploy.core.job.job.Cluster", Connected)
    monkeypatch.setattr("muster.deploy.core.job.job.make_plan", fetching)
    detached_main.drive(TELLS, make_job().having(TellOptions(tell)), folder)


def test_a_waiting_job_says_so_and_ends(word: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    why = "node2: docker pull: manifest unknown"
    told = tmp_path / "told"
    drive_waiting(tmp_path / "j", monkeypatch, tell=str(told))
    assert "node2: fetching it" in json.loads(os.read(word, 1 << 16))["title"]
    result = json.loads((tmp_path / "j" / "run" / "result.json").read_text())
    failure = result["first_failure"]
    assert (failure["kind"], failure["host"], failure["reason"]) == ("driver", None, why)
    ended = json.loads(told.read_text())
    assert (ended["job"], ended["state"], ended["hosts"], ended["ranks"]) == ("j", "failed", [], [])
    assert ended["first_failure"] == result["first_failure"]


def test_a_reason_that_cannot_be_encoded_costs_no_result(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "run", detached=True)
    run.wait(make_job(), "node2: fetching it")
    assert end_unstarted(run.path, "driver", "node2: \udc80 is no name", 1).exit_status == 1
    assert json.loads((run.path / "result.json").read_text())["first_failure"]["reason"][7] == "\udc80"
    assert "node2: ? is no name" in (run.path / "verdict.txt").read_text()


def test_one_without_a_launcher_is_gone(word: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.close(word)
    drive_waiting(tmp_path / "j", monkeypatch)
    assert not (tmp_path / "j").exists()


def test_a_start_without_its_launcher(word: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.close(word)
    (tmp_path / "j" / "run").mkdir(parents=True)
    monkeypatch.setattr("muster.deploy.core.job.job.Cluster", Connected)
    monkeypatch.setattr("muster.deploy.core.job.job.make_plan", lambda *ignored, **options: PLAN)
    monkeypatch.setattr("muster.deploy.core.job.job.deliver", lambda *ignored: None)
    detached_main.drive(TELLS, make_job(), tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_the_driver_on_the_head_needs_the_standard_library_alone(tmp_path: Path) -> None:
    code = own_code()
    for file, (name, *_) in zip(code.files, code.listing(), strict=True):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((code.root / file.path).read_bytes())
    package = "muster.deploy.features"
    modules = f"{package}.all_features, {package}.all_options, {package}.detach.detached_main"
    starts = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {modules}"
    done = subprocess.run([sys.executable, "-ISc", starts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ssh_is_asked_for_nothing_but_a_agent() -> None:
    (host,) = hostfile.parse("node1 user=ml port=2222")
    argv = command(host, "/opt/my python/bin/python3")
    assert argv[-5:-1] == ["-p", "2222", "--", "node1"]
    assert shlex.split(argv[-1]) == ["/opt/my python/bin/python3", "-c", BOOTSTRAP]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes"} < set(argv)


def test_the_reason_of_ssh_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Host key verification failed.' >&2\nexit 255\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (host,) = hostfile.parse("node2")
    error = OpenSshPipe(host, "python3", head="node1").last_words()
    assert error.text == "node1 cannot log in there: Host key verification failed."
    assert "try ssh node2 on node1" in error.remedy


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_detached_driver_never_sends_a_damaged_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").write_text("print(1)")
    tree = scan(tmp_path / "tree")
    store, digests = Store(tmp_path / "store"), [file.digest for file in tree.files]
    store.add(tree.archive(digests))
    kept = stored(tree, store.root)
    assert kept.archive(digests)
    DAMAGE[kind](store.path(digests[0]))
    with pytest.raises(
        MusterError, match=r"train\.py: lost or damaged in .*store since the job was launched"
    ):
        kept.archive(digests)
