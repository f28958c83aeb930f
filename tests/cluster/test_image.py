"""The image and the trust that compose.yaml sets up: what every node promises to the driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.striking import clean_at
from tests.launching import MUSTER, ROOT

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

ALL_REDUCE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename}: {total.item():.0f}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def script(cluster: Cluster) -> str:
    path = "/tmp/all_reduce.py"
    for node in cluster.nodes:
        put = cluster.exec(node, ("sh", "-c", f"cat >{path}"), stdin=ALL_REDUCE)
        assert put.returncode == 0, put.stderr
    return path


def ranks(output: str, size: int) -> dict[int, str]:
    """Rank -> node, of the ranks whose all_reduce had the right result."""
    return {int(rank): node for rank, node in re.findall(rf"rank (\d+) of {size} on (\w+): {size}", output)}


# The nodes


def test_nothing_on_a_node_is_root_or_can_become_root(cluster: Cluster) -> None:
    for node in cluster.nodes:
        assert set(cluster.exec(node, ("ps", "-e", "-o", "user=")).stdout.split()) == {"muster"}
        status = cluster.exec(node, ("cat", "/proc/1/status")).stdout
        assert re.search(r"^CapPrm:\s0+$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s0+$", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\s0*80000$", status, re.MULTILINE), (
            "SYS_PTRACE alone, which nothing can get"
        )
        assert re.search(r"^NoNewPrivs:\s1$", status, re.MULTILINE)


def test_idle_node_has_no_process_of_a_job_and_a_running_one_shows(cluster: Cluster) -> None:
    clean_at(cluster, ["node3"])
    with subprocess.Popen(
        ("ssh", "-F", str(cluster.ssh_config), "node3", "echo up; exec sleep 300"), stdout=-1
    ) as job:
        assert job.stdout and job.stdout.readline() == b"up\n"
        (process,) = cluster.processes("node3")
        while "echo up" in process.args:  # the shell, on its way to sleep
            (process,) = cluster.processes("node3")
        assert process.args == "sleep 300"
        cluster.exec("node3", ("kill", str(process.pid)))
    clean_at(cluster, ["node3"])


def test_an_auditor_finds_no_fault_in_the_images_sshd(cluster: Cluster) -> None:
    # Its test of denial of service would be one.
    audit = (
        "ssh_audit",
        "--json",
        "--skip-rate-test",
        "--timeout=60",
        f"127.0.0.1:{cluster.env['MUSTER_PORT1']}",
    )
    done = subprocess.run(
        (sys.executable, "-m", *audit), capture_output=True, text=True, timeout=540, check=False
    )
    report = json.loads(done.stdout)
    found = [item for kind in ("kex", "key", "mac", "enc") for item in report[kind]]
    assert len(found) > 10
    assert [item["algorithm"] for item in found if item.get("notes", {}).get("fail")] == []


def test_login_of_a_session_finds_the_training_stack_without_the_images_environment(cluster: Cluster) -> None:
    done = cluster.ssh("node1", "mpirun --version && df --output=size --block-size=M /dev/shm && pwd")
    assert "5.0.7" in done.stdout
    assert "1024M" in done.stdout
    assert done.stdout.endswith("/home/muster\n")


# Trust


def test_the_head_reaches_every_node_with_pinned_host_keys(cluster: Cluster) -> None:
    for target in cluster.nodes:
        done = cluster.exec("node1", ("ssh", "-o", "StrictHostKeyChecking=yes", target, "hostname"))
        assert (done.stdout, done.stderr) == (f"{target}\n", "")


@pytest.mark.parametrize("source", ["node2", "node3"])
def test_another_node_has_no_key_and_reaches_nobody(cluster: Cluster, source: str) -> None:
    assert "id_ed25519" not in cluster.exec(source, ("ls", "/etc/muster/ssh")).stdout.split()
    for target in cluster.nodes:
        done = cluster.exec(source, ("ssh", target, "hostname"))
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr


def test_a_node_is_healthy_while_its_sshd_answers_with_its_key(cluster: Cluster) -> None:
    health, image = "/usr/libexec/muster/healthy", cluster.compose("config", "--images", "keys").strip()
    done = cluster.exec("node2", (health,))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def said(*options: str) -> str:
        done = subprocess.run(
            ("docker", "run", "--rm", *options, image, health), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        return done.stderr

    assert "nobody can log in: /etc/muster/ssh/authorized_keys is empty or missing" in said()
    mounts = ("--volumes-from", cluster.container("node2"))
    assert "no sshd answers at port 2222" in said(*mounts)
    network = ("--network", f"container:{cluster.container('node1')}")
    assert "an sshd that is not this node's answers" in said(*network, *mounts)


def test_this_machine_reaches_every_node_with_the_generated_ssh_config(cluster: Cluster) -> None:
    for node in cluster.nodes:
        done = cluster.ssh(node, "hostname")
        assert (done.stdout, done.stderr) == (f"{node}\n", "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-o", "GlobalKnownHostsFile=/dev/null"), "Host key verification failed"),
        (("-o", "HostKeyAlias=node3"), "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        (("-o", "PubkeyAuthentication=no", "-o", "BatchMode=no"), "Permission denied (publickey)"),
        (("-l", "root"), "Permission denied (publickey)"),
    ],
    ids=["unknown host key", "another node's host key", "no key, so a password", "root"],
)
def test_ssh_refuses(cluster: Cluster, options: tuple[str, ...], reason: str) -> None:
    done = cluster.exec("node1", ("ssh", *options, "node2", "true"))
    assert done.returncode == 255
    assert reason in done.stderr


def test_ssh_refuses_a_key_that_is_not_the_clusters(cluster: Cluster) -> None:
    attempt = "rm -f /tmp/other; ssh-keygen -q -t ed25519 -N '' -f /tmp/other; "
    attempt += "grep -v IdentityFile /etc/ssh/ssh_config.d/muster.conf >/tmp/other.conf; "
    attempt += "ssh -F /tmp/other.conf -i /tmp/other node2 true"
    done = cluster.exec("node1", ("sh", "-c", attempt))
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_each_node_has_a_host_key_of_its_own_and_sees_no_other(cluster: Cluster) -> None:
    volumes, keys = [], []
    for node in cluster.nodes:
        inspect = ("docker", "inspect", "--format", "{{json .Mounts}}", cluster.container(node))
        mounts = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
        volumes += [(mount["Destination"], mount["RW"], mount["Name"]) for mount in mounts]
        keys.append(cluster.exec(node, ("cat", "/etc/muster/ssh/ssh_host_ed25519_key")).stdout)
    assert [volume[:2] for volume in volumes] == [("/etc/muster/ssh", False)] * 3
    assert len({name for _, _, name in volumes}) == 3
    assert all(key.startswith("-----BEGIN OPENSSH PRIVATE KEY-----") for key in keys)
    assert len(set(keys)) == 3


def test_a_second_up_keeps_the_keys(cluster: Cluster) -> None:
    names = ("id_ed25519", "known_hosts", "ssh_config")
    before = [(cluster.muster_dir / name).read_text() for name in names]
    cluster.start()
    assert [(cluster.muster_dir / name).read_text() for name in names] == before


def test_new_volumes_get_new_keys_and_leave_nothing_stale(cluster: Cluster, tmp_path: Path) -> None:
    muster = tmp_path / "a place"  # a path with a space is a path
    muster.mkdir()

    def make_keys(volumes: str) -> str:
        options = ["--env", f"MUSTER_DIR={muster}", "--env", "NODES=node1:2211 node2:2212", "--user", "root"]
        options += ["--volume", f"{muster}:/muster", "--volume", f"{tmp_path / volumes}/node1:/trust/node1"]
        options += ["--volume", f"{tmp_path / volumes}/node2:/trust/node2", "--network", "none"]
        image = cluster.compose("config", "--images", "keys").strip()
        command = ("docker", "run", "--rm", *options, image, "/usr/libexec/muster/make-keys")
        subprocess.run(command, check=True, capture_output=True)
        return (muster / "known_hosts").read_text() + (muster / "id_ed25519").read_text()

    first = make_keys("one")
    assert make_keys("one") == first
    assert not set(make_keys("two").splitlines()[:2]) & set(first.splitlines()[:2])
    own = (muster / "known_hosts").stat()
    assert (own.st_uid, own.st_mode & 0o777) == (muster.stat().st_uid, 0o600)
    lookup = ("ssh-keygen", "-f", str(muster / "known_hosts"), "-F", "[127.0.0.1]:2212")
    found = subprocess.run(lookup, capture_output=True, text=True, check=True).stdout.splitlines()[1]
    host_key = (tmp_path / "two/node2/ssh_host_ed25519_key.pub").read_text()
    assert found.split()[1:] == host_key.split()[:2]
    settings = subprocess.run(
        ("ssh", "-G", "-F", str(muster / "ssh_config"), "node2"), capture_output=True, text=True, check=True
    ).stdout
    assert f"identityfile {muster}/id_ed25519\n" in settings
    assert "port 2212\n" in settings


def test_dead_and_frozen_nodes_come_back_with_the_same_keys(cluster: Cluster) -> None:
    cluster.kill("node2")
    cluster.pause("node3")
    assert cluster.ssh("node2", "true").returncode == 255
    cluster.start()
    names = [cluster.exec("node1", ("ssh", node, "hostname")).stdout for node in cluster.nodes]
    assert names == ["node1\n", "node2\n", "node3\n"]


# What is in the image


def test_image_is_small_enough_to_send_to_every_host(cluster: Cluster) -> None:
    image = cluster.compose("config", "--images", "keys").strip()
    inspect = ("docker", "image", "inspect", "--format", "{{.Size}}", image)
    size = int(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
    assert size < 0.85e9, "docs/image.md says what each package takes"


def test_no_program_of_the_image_lends_the_rights_of_another_account(cluster: Cluster) -> None:
    image = cluster.compose("config", "--images", "keys").strip()
    look = ("--user", "0", "--entrypoint", "find", image, "/", "-xdev", "-type", "f", "-perm", "/6000")
    done = subprocess.run(("docker", "run", "--rm", *look), capture_output=True, text=True, check=True)
    assert done.stdout == "", "setuid or setgid"


def test_what_the_image_leaves_out_is_missed_by_nobody(cluster: Cluster) -> None:
    program = (
        "import torch; torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(1))\n"
        "import torch.distributed.run, torch.distributed.checkpoint, torch.testing\n"
        "import networkx, numpy.testing, sympy"
    )
    done = cluster.exec("node1", ("python3", "-c", program))
    assert (done.returncode, done.stderr) == (0, "")


# Training, by hand and without one environment variable


def test_mpirun_by_hand_runs_3_ranks_on_3_nodes(cluster: Cluster, script: str) -> None:
    hosts = ",".join(cluster.nodes)
    done = cluster.ssh("node1", f"mpirun --timeout 500 -n 3 --host {hosts} python3 {script} mpi", timeout=540)
    assert done.returncode == 0, done.stderr
    assert ranks(done.stdout, 3) == dict(enumerate(cluster.nodes))


def test_ranks_of_a_node_copy_messages_from_each_others_memory(cluster: Cluster) -> None:
    program = "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(bytes(1 << 20)); print('sent')"
    command = f'mpirun --mca smsc_base_verbose 10 -n 2 --host node1:2 python3 -c "{program}" 2>&1'
    said = cluster.ssh("node1", command, timeout=540).stdout
    assert said.count("sent\n") == 2, said
    assert said.count("selected shared-memory single-copy component: cma") == 2, said
    assert "do not have the necessary permissions" not in said


# One rank on each node: torchrun itself imports torch there too.
@pytest.mark.soak
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun_by_hand_runs_3_ranks_on_3_nodes(cluster: Cluster, script: str, rendezvous: str) -> None:
    options = f"--nnodes=3 --nproc-per-node=1 --rdzv-backend={rendezvous} --rdzv-endpoint=node1:29400"
    agents = []
    for node_rank, node in enumerate(cluster.nodes):
        # Only static rendezvous takes places from --node-rank; c10d gives them by order of arrival.
        torchrun = f"python3 -m torch.distributed.run {options} --rdzv-id=by-hand --node-rank={node_rank}"
        command = f"timeout 500 {torchrun} {script} gloo 2>&1"
        argv = ("ssh", "-F", str(cluster.ssh_config), node, command)
        agents.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
    output = "".join(agent.communicate(timeout=540)[0] for agent in agents)
    assert [agent.returncode for agent in agents] == [0, 0, 0], output
    placed = ranks(output, 3)
    assert sorted(placed) == [0, 1, 2]
    assert sorted(placed.values()) == ["node1", "node2", "node3"]


# -- `muster image.check`: the image proves itself again, and a broken promise is an exit status --


if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (str(MUSTER), *words), cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )


@pytest.mark.soak
def test_the_image_keeps_every_promise_and_its_labels_are_true(cluster: Cluster) -> None:
    image = cluster.compose("config", "--images", "keys").strip()
    done = muster("image.check", "--image", image, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert all(kept for _, kept, _ in said["checks"])
    inspect = ("docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image)
    labels = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
    assert labels["muster.flavor"] == said["flavor"]
    for component, version in said["versions"].items():
        assert labels[f"muster.{component}"] == version


def test_an_image_of_somebody_else_is_refused_with_its_own_words(cluster: Cluster) -> None:
    done = muster("image.check", "--image", "debian:trixie-slim")
    assert done.returncode == 2
    assert "debian:trixie-slim has no proof of its versions" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_image_that_is_not_here_is_named(cluster: Cluster) -> None:
    done = muster("image.check", "--image", "muster:nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no image muster:nowhere here; muster image build makes muster:cpu, ")
