"""`muster cluster up` and `down` keep off the SSH keys of every other cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.deploy.cli.dispatch import main, run
from muster.deploy.features.image.engine import how_to_get
from muster.deploy.features.practice import command
from muster.deploy.features.practice.command import KEYS
from tests.launching import ROOT
from tests.slurm import put_programs

KEY = "the only key"
OF_SETUP = """# How `fab` and you reach the cluster from this machine: ssh -F /work/.muster/ssh_config node1
# Written by setup.yml. What is not here, such as a proxy, is taken from ~/.ssh/config.
Host node1
    User muster
    HostKeyAlias node1
"""
OF_USER = "Host node1\n  HostName 127.0.0.1\n  User vagrant\n  Port 2222\n"


def of_practice() -> str:
    """An entry of ssh_config as the practice cluster writes it."""
    script = (ROOT / "docker" / "make-keys.sh").read_text()
    written = re.search(r"ssh_config\" <<END\n(.*?)END\n", script, re.DOTALL)
    assert written
    text = written[1].replace("$MUSTER_DIR", "/work/.muster")
    return text.replace("$name", "node1").replace("$port", "2201")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A docker that does nothing; returns what it was asked for."""
    log = tmp_path / "docker.log"
    put_programs(tmp_path / "bin", docker=f'echo "$4" >> {log}')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in ("MUSTER_DIR", "MUSTER_TARGET", "MUSTER_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project" / ".muster").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return lambda: log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(
    "others",
    [
        {"ssh_config": OF_SETUP},
        {"ssh_config": OF_USER},
        {},
        {"hosts.json": "{}", "ssh_config": of_practice()},
    ],
    ids=["of setup", "of the user", "of a setup that was interrupted", "of a setup that took the key over"],
)
@pytest.mark.parametrize("line", ["cluster up", "cluster up --hosts practice.txt", "cluster down"])
def test_the_key_of_another_cluster_is_kept(
    docker: Callable[[], list[str]], capsys: pytest.CaptureFixture[str], line: str, others: dict[str, str]
) -> None:
    Path("hosts.txt").write_text("node[1-3] slots=8\n")
    files = {"id_ed25519": KEY, **others}
    for name, text in files.items():
        Path(".muster", name).write_text(text)
    with pytest.raises(SystemExit) as end:
        main([*line.split()])
    assert end.value.code == 2
    assert "mkdir practice && cd practice" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in Path(".muster").iterdir()} == files
    assert (docker(), Path("practice.txt").exists()) == ([], False)


def test_a_practice_cluster_goes_with_its_keys(docker: Callable[[], list[str]]) -> None:
    for name in KEYS:
        Path(".muster", name).write_text(of_practice() if name == "ssh_config" else KEY)
    Path(".muster", "verify.json").write_text("{}")  # muster verify was tried on it
    for line in ("cluster up", "cluster up", "cluster down", "cluster down", "cluster up"):
        run([*line.split()])
    up = ["build", "run", "up"]
    assert docker() == [*up, *up, "down", "down", *up]
    assert sorted(path.name for path in Path(".muster").iterdir()) == [".gitignore", "verify.json"]


def test_each_folder_gets_free_ports_and_keeps_them(
    docker: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        monkeypatch.delenv(f"MUSTER_PORT{number}", raising=False)
    folder, env_file = tmp_path / "project" / ".muster", tmp_path / "project" / ".env"
    monkeypatch.setattr(command, "COMPOSE", tmp_path / "project" / "compose.yaml")
    env_file.write_text("OWN=1\n")
    with socket.socket() as other:  # that of another folder
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(command, "FIRST_PORT", taken)
        chosen = command._ports(folder)
        assert len({*chosen.values()}) == 5 and str(taken) not in chosen.values()
        lines = [f"{name}={port}" for name, port in chosen.items()]
        assert env_file.read_text().splitlines() == ["OWN=1", *lines]  # `docker compose` there reads it
        assert command._ports(folder) == chosen
    # While the cluster runs, its ports are not free, and are its own.
    ports = [str(taken), *list(chosen.values())[1:]]
    (folder / "ssh_config").write_text("".join(of_practice().replace("2201", port) for port in ports))
    put_programs(tmp_path / "bin", docker="echo 0123456789ab")
    with socket.socket() as own:
        own.bind(("127.0.0.1", taken))
        own.listen()
        assert [*command._ports(folder).values()] == ports
    monkeypatch.setenv("MUSTER_PORT2", "4242")
    assert command._ports(folder)["MUSTER_PORT2"] == "4242"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("muster:cpu-source-devel", "get it with: muster image build cpu-source-devel"),
        (
            "muster:walk",
            "muster image build makes muster:cpu, muster:cpu-source, muster:cuda-debian, muster:cuda; "
            "load another one with: docker load",
        ),
        ("registry.site:5000/node:7", "get it with: docker pull registry.site:5000/node:7"),
    ],
)
def test_a_missing_image_is_built_only_if_it_is_a_target(name: str, remedy: str) -> None:
    assert how_to_get(name) == remedy
