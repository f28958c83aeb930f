"""Environments of packages on a host: made whole or not at all, once, and removed when nobody uses them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pluggy
import pytest

from muster.deploy.core.decode import from_json
from muster.deploy.core.wire.durable import read_sealed, write_sealed
from muster.deploy.features.packages.bring import uv_program
from muster.deploy.features.packages.messages import ENVIRONMENTS, Environment
from muster.deploy.features.packages.on_host import environments as build
from muster.deploy.features.packages.on_host.environments import (
    RECORD,
    Environments,
    hold,
    lock,
    record,
    remove,
    size_of,
)
from tests.damage import DAMAGE
from tests.packages import make_wheel
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow  # several processes a test

KEY = "0123456789abcdef0123"


def unsent(frame: Any) -> None:
    """Nobody listens."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ~/.muster with uv's program among the wheels."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".muster"
    (home / "wheels").mkdir(parents=True)
    (home / "wheels" / "uv").symlink_to(uv_program())
    return home


@pytest.fixture(autouse=True)
def program_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_uv", lambda wheels, digest: wheels / digest)


def bring(home: Path, wheel: Path) -> list[str]:
    """Put a wheel where the driver's transfer would leave it."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    shutil.copy2(wheel, home / "wheels" / digest)
    return [digest, wheel.name]


def request(**changes: Any) -> dict[str, Any]:
    asked = {"key": KEY, "source": "requirements.txt", "python": "", "system": False, "index": False}
    return {**asked, "uv": "uv", "wheels": [], **changes}


def make(home: Path, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    wheels = [bring(home, make_wheel(tmp_path / "wheels", "greeting"))]
    return build.make(home, request(wheels=wheels, **changes), "greeting==1.0\n")


def test_one_is_made_from_brought_wheels(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(
        build, "sync_file_system", lambda folder: synced.append([path.name for path in folder.iterdir()])
    )
    made = make(home, tmp_path)
    assert [("bin" in names, RECORD in names) for names in synced] == [(True, False)], "its record is last"
    known = from_json(Environment, made)
    assert (known.source, known.packages, known.torch, known.mpirun) == ("requirements.txt", 1, None, None)
    said = subprocess.run(
        [known.executable, "-B", "-c", "import greeting, sys; print(greeting.VERSION, sys.prefix)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == f"1.0 {home}/envs/{KEY}\n"
    assert [*(home / "envs" / KEY).rglob("greeting.*.pyc")], "each rank would compile it"
    there = ENVIRONMENTS.read(Environments(home, unsent).do_envs({}, b""))
    assert there.environments == {KEY: known}
    assert there.home == ENVIRONMENTS.read(Environments(home, unsent).do_envs({}, b"")).home


def test_a_half_made_environment_is_never_used_and_is_made_anew(home: Path, tmp_path: Path) -> None:
    half = home / "envs" / KEY
    (half / "bin").mkdir(parents=True)
    (half / "bin" / "python").write_text("half")
    assert ENVIRONMENTS.read(Environments(home, unsent).do_envs({}, b"")).environments == {}
    with pytest.raises(FileNotFoundError, match="was removed in between; launch again"):
        hold(home, KEY)
    assert from_json(Environment, make(home, tmp_path)).packages == 1


def test_a_package_that_cannot_be_installed_is_named_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    wheels = [bring(home, make_wheel(tmp_path / "wheels", "greeting"))]
    with pytest.raises(build.BuildError, match="absent-package was not found"):
        build.make(home, request(wheels=wheels), "greeting==1.0\nabsent-package==3\n")
    assert [path.name for path in (home / "envs").glob(f"{KEY}*")] == [f"{KEY}.lock"]


def test_a_host_builds_nothing_either(home: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "broken"\nversion = "1"\n'
    )
    (source / "backend.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    with pytest.raises(build.BuildError) as failed:
        build.make(home, request(index=True), _pylock_of_folder(source))
    assert "broken" in str(failed.value)
    assert not (tmp_path / "owned").exists()


def _pylock_of_folder(source: Path) -> str:
    return (
        'lock-version = "1.0"\ncreated-by = "test"\n\n[[packages]]\nname = "broken"\nversion = "1"\n'
        f'directory = {{ path = "{source}" }}\n'
    )


def test_equal_ones_are_made_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    really = build._run

    def noted(argv: list[str], place: Path) -> str:
        ran.append(" ".join(argv))
        return really(argv, place)

    monkeypatch.setattr(build, "_run", noted)
    made: list[dict[str, Any]] = []
    wheels = [bring(home, make_wheel(tmp_path / "wheels", "greeting"))]
    work = [
        threading.Thread(
            target=lambda: made.append(build.make(home, request(wheels=wheels), "greeting==1.0\n"))
        )
        for _ in range(2)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert made[0]["executable"] == made[1]["executable"]
    assert len([words for words in ran if " venv " in words]) == 1


def test_the_hosts_own_packages_are_seen_where_its_torch_is_wanted(home: Path, tmp_path: Path) -> None:
    made = make(home, tmp_path, system=True)
    assert made["packages"] == 1
    own = subprocess.run(
        [made["executable"], "-c", "import pluggy; print(pluggy.__version__)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert own.stdout.strip() == pluggy.__version__
    assert remove(home / "envs", KEY) is not None
    alone = make(home, tmp_path)["executable"]
    assert subprocess.run([alone, "-c", "import pluggy"], capture_output=True, check=False).returncode


def complete(home: Path, key: str = KEY, *, age: float = 0.0) -> Path:
    """An environment as its record says, without packages."""
    folder = home / "envs" / key
    folder.mkdir(parents=True)
    facts: dict[str, Any] = {"executable": sys.executable, "python": "3.13.5", "torch": None, "mpi4py": None}
    facts |= {"mpirun": None, "mpi": None, "source": "requirements.txt", "packages": 0, "bytes": 0}
    write_sealed(folder / RECORD, facts)
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def test_an_environment_that_a_job_uses_is_not_removed(home: Path) -> None:
    folder = complete(home, age=3600.0)
    held = hold(home, KEY)
    assert remove(home / "envs", KEY) is None
    assert Environments(home, unsent).do_env_remove({"keys": [KEY]}, b"")["kept"] == [KEY]
    os.close(held)
    assert record(folder) is not None
    assert remove(home / "envs", KEY) is not None
    assert not folder.exists()


def test_an_agent_holds_the_environment_of_its_ranks_until_it_ends(home: Path) -> None:
    complete(home, age=3600.0)
    agent = Environments(home, unsent)
    for _ in range(2):  # a restart asks again
        assert agent.do_env_hold({"key": KEY}, b"") == {}
    assert remove(home / "envs", KEY) is None
    with pytest.raises(FileNotFoundError, match="was removed in between; launch again"):
        agent.do_env_hold({"key": KEY[::-1]}, b"")


def test_what_is_no_environment_is_neither_removed_nor_listed(home: Path) -> None:
    complete(home)
    (home / "envs" / "cache").mkdir()
    asked = {"keys": ["cache", "..", KEY[::-1]]}
    assert Environments(home, unsent).do_env_remove(asked, b"") == {"removed": [], "kept": [], "freed": 0}
    assert (home / "envs" / "cache").is_dir()


def test_wheels_go_with_the_last_environment_unless_a_launch_brings_some(home: Path) -> None:
    old, new = complete(home, KEY), complete(home, KEY[::-1])
    wheel = home / "wheels" / ("ab" * 32)
    wheel.write_bytes(b"wheel")
    agent = Environments(home, unsent)
    assert agent.do_env_remove({"keys": [KEY]}, b"")["removed"] == [KEY]
    assert (old.exists(), new.exists(), wheel.exists()) == (False, True, True)
    agent.do_env_remove({"keys": []}, b"")
    assert (new.exists(), wheel.exists()) == (False, True)
    for path in (*wheel.parent.rglob("*"), wheel.parent):
        os.utime(path, (1.0, 1.0), follow_symlinks=False)
    assert agent.do_env_remove({"keys": []}, b"")["freed"] >= 5
    assert not wheel.parent.exists()


def test_an_environment_whose_python_is_gone_does_not_count(home: Path) -> None:
    folder = complete(home)
    write_sealed(folder / RECORD, {**read_sealed(folder / RECORD), "executable": "/nowhere/python"})
    assert ENVIRONMENTS.read(Environments(home, unsent).do_envs({}, b"")).environments == {}


@pytest.mark.parametrize("kind", DAMAGE)
def test_an_environment_whose_record_was_damaged_does_not_count(home: Path, kind: str) -> None:
    folder = complete(home)
    assert record(folder) is not None
    DAMAGE[kind](folder / RECORD)
    assert record(folder) is None


def test_the_lock_of_one_environment_does_not_block_another(home: Path) -> None:
    complete(home)
    held = lock(home / "envs", KEY, fcntl.LOCK_EX)
    other = lock(home / "envs", KEY[::-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        lock(home / "envs", KEY, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for descriptor in (held, other):
        os.close(descriptor)
    assert size_of(home / "nothing") == 0


def test_an_address_that_does_not_answer_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SECONDS", PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        slow, gone = (f"http://127.0.0.1:{each.getsockname()[1]}/" for each in (silent, closed))
        assert build.refusal([]) == ""
        assert re.fullmatch(f"{gone}: .*Connection refused.*", build.refusal([gone]))
        monkeypatch.setattr(build, "SECONDS", 0.2)
        said = build.refusal([slow, gone])
        assert re.fullmatch(f"{slow}: (no answer within 0 s|.*timed out.*)", said)
