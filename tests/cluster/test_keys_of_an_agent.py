"""An agent that holds more keys than an sshd takes (MaxAuthTries), and advice that can be typed."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.start_faults import known_hosts
from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

OTHERS = 7


@pytest.fixture
def of_agent(project: Project, cluster: Cluster) -> Iterator[Project]:
    """The project, whose right key only an agent has, after seven others."""
    with known_hosts(project, cluster, "", ""), tempfile.TemporaryDirectory() as folder:
        place, right = Path(folder, "agent"), project.path / ".muster" / "id_ed25519"
        env = {**os.environ, "SSH_AUTH_SOCK": str(place)}
        with subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.PIPE) as running:
            assert running.stdout and running.stdout.readline()  # it listens
            keys = [Path(folder, f"key{number}") for number in range(OTHERS)]
            for key in keys:
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
            for key in (*keys, right):
                subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True)
            public = subprocess.run(["ssh-keygen", "-y", "-f", str(right)], capture_output=True, check=True)
            right.with_name("id_ed25519.pub").write_bytes(public.stdout)
            right.unlink()
            config = project.path / ".muster" / "ssh_config"
            config.write_text(config.read_text().replace("IdentitiesOnly yes", f"IdentityAgent {place}"))
            yield project
            running.terminate()


def test_the_named_key_of_eight_is_first_and_without_a_name_there_is_advice(of_agent: Project) -> None:
    project = of_agent
    done = project.muster("run", "--include", "node1", "--command", "true")
    assert (done.returncode, done.stderr) == (0, ""), done
    config = project.path / ".muster" / "ssh_config"
    config.write_text(config.read_text().replace("id_ed25519", "nowhere"))
    refused = project.muster("run", "--include", "node1", "--command", "true")
    assert refused.returncode == 3
    assert "oo many authentication failures" in refused.stderr
    assert "with IdentityFile and IdentitiesOnly yes" in refused.stderr


def test_advice_for_an_unknown_key_works(project: Project, cluster: Cluster, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    answer.write_text("#!/bin/sh\necho yes\n")
    answer.chmod(0o755)
    person = {**os.environ, "SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
    with known_hosts(project, cluster, "", ""):
        known = project.path / ".muster" / "known_hosts"
        known.write_text("")
        refused = project.muster("run", "--include", "node1", "--command", "true")
        assert refused.returncode == 3
        advised = shlex.split(refused.stderr.partition("confirm it once with: ")[2])
        config = str(project.path / ".muster" / "ssh_config")
        asks = ("-o", "BatchMode=no", "-o", "StrictHostKeyChecking=ask")
        assert advised == ["ssh", *asks, "-F", config, "node1"]
        login = [*advised, "echo", "there"]
        done = subprocess.run(login, env=person, capture_output=True, text=True, check=False)
        assert done.stdout == "there\n", done
        again = project.muster("run", "--include", "node1", "--command", "true")
        assert (again.returncode, again.stderr) == (0, ""), again
