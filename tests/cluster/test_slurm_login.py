"""A launch from another machine: its driver runs on the login node of a Slurm site, over a real SSH."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.slurm import Slurm, slurm_cluster
from tests.launching import MUSTER, Project, make_project
from tests.parallel import NUMBER
from tests.waiting import wait_until

pytestmark = pytest.mark.soak
PORT = 2222
SSHD = f"""
Port {PORT}
HostKey /home/muster/site/host
AuthorizedKeysFile /home/muster/site/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
"""
CONFIG = """
Host login
    HostName {address}
    Port {port}
    User muster
    IdentityFile {keys}/user
    UserKnownHostsFile {keys}/known_hosts
"""


@dataclass(frozen=True)
class Site:
    """A Slurm cluster, and a project on this machine whose SSH reaches the login node as `login`."""

    slurm: Slurm
    project: Project

    def muster(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(MUSTER), *words],
            cwd=self.project.path,
            env=self.project.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def launch(self, slurm: str, *program: str) -> str:
        done = self.muster("launch", "--slurm", slurm, "--slurm-login", "login", "program.py", *program)
        assert done.returncode == 0, done.stdout + done.stderr
        match = re.search(r"muster attach (\S+)", done.stdout)
        assert match, done.stdout
        return match[1]


@pytest.fixture(scope="module")
def site(node_image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    keys = tmp_path_factory.mktemp("keys")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
    project = make_project(tmp_path_factory.mktemp("site") / "project")
    with slurm_cluster(f"muster-slurm-test{NUMBER or ''}") as slurm:
        files = {"host": (keys / "host").read_text(), "sshd_config": SSHD}
        files["authorized_keys"] = (keys / "user.pub").read_text()
        for name, text in files.items():
            write = f"umask 077 && mkdir -p ../site && cat > ../site/{name}"
            subprocess.run(slurm.argv("sh", "-c", write), env=slurm.env, input=text, text=True, check=True)
        slurm.run("/usr/sbin/sshd", "-f", "/home/muster/site/sshd_config", folder="/")
        address = slurm.run("hostname", "-i", folder="/").stdout.split()[0]
        kind, key, *_ = (keys / "host.pub").read_text().split()
        (keys / "known_hosts").write_text(f"[{address}]:{PORT} {kind} {key}\n")
        own = project.path / ".muster"
        own.mkdir(mode=0o700)
        (own / "ssh_config").write_text(CONFIG.format(address=address, port=PORT, keys=keys))
        yield Site(slurm, project)


def test_a_job_runs_on_hosts_of_slurm_and_its_folder_comes_here(site: Site) -> None:
    job = site.launch("-N 3 -n 4")
    done = site.muster("attach", job)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DONE    4 ranks on 3 hosts, mpirun" in done.stdout
    result = json.loads((Path(site.project.path) / "runs" / job / "result.json").read_text())
    assert result["exit_status"] == 0
    wait_until(lambda: not site.slurm.jobs(), "the end of Slurm's job")
    wait_until(lambda: not site.slurm.left(), "the end of all processes of the job")


def test_a_job_is_seen_and_stopped_from_here(site: Site) -> None:
    job = site.launch("-N 2 -n 2", "wait")
    wait_until(lambda: site.muster("logs", job).stdout.count("waiting") == 2, "both ranks")
    shown = site.muster("status", "--json", job)
    (state,) = json.loads(shown.stdout)
    assert state["state"] == "running", state
    stopped = site.muster("stop", job)
    assert re.search(rf"{job} stopped by muster stop", stopped.stdout), stopped
    wait_until(lambda: not site.slurm.jobs(), "the end of Slurm's job")
    wait_until(lambda: not site.slurm.left(), "the end of all processes of the job")


def test_what_slurm_refuses_is_said_at_once(site: Site) -> None:
    done = site.muster("launch", "--slurm", "-N 3 -p gpu", "--slurm-login", "login", "program.py")
    complaint = "invalid partition specified: gpu; Invalid partition name specified"
    assert done.stderr == f"--slurm '-N 3 -p gpu': {complaint}\n"
    assert done.returncode == 2
