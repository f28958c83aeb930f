"""Which findings follow from what is known of the hosts: one table, and what keeps quiet."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.requests import Reached
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.rendezvous import no_port
from muster.deploy.core.plan.spec import LauncherName
from muster.deploy.core.text.fold import fold_names
from muster.deploy.features.check.command import Checkup
from muster.deploy.features.check.finding import Finding
from muster.deploy.features.check.host import driver_runs, number, oldest_driver
from muster.deploy.features.check.host_reports import Clock, HostReport, HostReports
from muster.deploy.features.check.judge import judge, unfit
from muster.deploy.features.check.messages import Card, Folder, Gpu, GpuHost, HostHealth, JobProcesses
from muster.deploy.features.leases.messages import Device
from tests.unit.plans import NODE

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
HOME, TMP = Folder("/home/ml/.muster", 50 * GIB, None), Folder("/tmp", 50 * GIB, None)
HEALTHY = HostHealth(
    user="ml",
    folders=(HOME, TMP),
    shm_free=8 * GIB,
    nofile=1 << 20,
    memlock=-1,
    rdma=False,
    gpus=(),
    gpu_error=None,
    driver=None,
    driver_cuda=None,
    torch_cuda=None,
    nccl=None,
    jobs=(),
)
IDLE = Gpu(index=0, used=4, total=81920, ecc=0, pids=())
TWO_GPUS = {"gpus": (IDLE, dataclasses.replace(IDLE, index=1)), "torch_cuda": "12.4", "driver_cuda": "12.8"}
DRIVEN = GpuHost(
    cards=tuple(Card(address, "0x2330", "nvidia") for address in ("0000:07:00.0", "0000:0a:00.0")),
    module="580.95.05",
)
THREE = "node[1-3] slots=2"
Change = Mapping[str, Any]


def reach(hosts: Sequence[str], source: str, cut: Mapping[tuple[str, str], str]) -> dict[str, Reached]:
    """How one host reaches all, less the pairs that are cut."""
    address = {name: f"10.0.0.{number}" for number, name in enumerate(hosts, start=1)}
    return {
        target: Reached(refused={address[target]: cut[source, target]})
        if (source, target) in cut
        else Reached({address[target]: "eth0"})
        for target in hosts
    }


LEASED = (Device(0, "GPU-0", user="alice", job="j"),)


def examine(
    text: str,
    facts: Mapping[str, Change] | None = None,
    health: Mapping[str, Change] | None = None,
    other: Mapping[str, Change] | None = None,
    cut: Mapping[tuple[str, str], str] | None = None,
    errors: Mapping[str, HostError] | None = None,
) -> HostReports:
    """Healthy hosts, with changes to what is known of some of them; `"*"` changes all."""

    def changes(of: Mapping[str, Change] | None, name: str) -> dict[str, Any]:
        return {**(of or {}).get("*", {}), **(of or {}).get(name, {})}

    names = [host.name for host in hostfile.parse(text) if host.name not in (errors or {})]
    examined = {
        name: dataclasses.replace(
            HostReport(
                facts=dataclasses.replace(NODE, hostname=name, **changes(facts, name)),
                health=dataclasses.replace(HEALTHY, **changes(health, name)),
                clock=Clock(0.0, 0.0001),
                addresses=(f"10.0.0.{number}",),
                rendezvous=20000 + number,
                reached=reach(names, name, cut or {}),
            ),
            **changes(other, name),
        )
        for number, name in enumerate(names, start=1)
    }
    return HostReports(examined, errors or {})


def found(text: str, launcher: LauncherName = "mpirun", **changes: Any) -> tuple[Finding, ...]:
    return judge(hostfile.parse(text), examine(text, **changes), launcher)


def one_host(**changes: Any) -> dict[str, Any]:
    """Changes to node2's health."""
    return {"health": {"node2": changes}}


def differing(what: str, others: Any, node2: Any) -> dict[str, Any]:
    """One value of health on every host, and another on node2."""
    return {"health": {"*": {what: others}, "node2": {what: node2}}}


def gpus(node2: Change, **facts: Any) -> dict[str, Any]:
    """Two good GPUs on every host, and something else on node2."""
    return {
        "facts": {"*": {"gpus": 2}, "node2": facts},
        "health": {"*": {**TWO_GPUS, "driver": "570.1", "nccl": "2.21.5"}, "node2": node2},
    }


OTHER_JOB = JobProcesses("20261119-080000-beef", (41, 42), kept=False)
DROPPED = "timed out"
# id, severity, host, words of the text, words of the remedy, hosts file, what is wrong
TABLE: list[tuple[str, str, str, str, str, str, dict[str, Any]]] = [
    ("mpi.missing", "error", "node2", "no mpirun beside", "install Open MPI 4.1 or 5.0",
     THREE, {"facts": {"node2": {"mpirun": None, "mpi": None}}}),
    ("mpi.foreign", "error", "node2", "is not Open MPI's", "first on PATH",
     THREE, {"facts": {"node2": {"mpi": None}}}),
    ("mpi.failing", "error", "node2", "/usr/bin/mpirun --version fails: no more processes", "run it there",
     THREE, {"facts": {"node2": {"mpi": None, "mpi_error": "no more processes are allowed"}}}),
    ("mpi.unsupported", "error", "node2", "Open MPI 3.1.6 is not supported", "install 4.1 or 5.0",
     THREE, {"facts": {"node2": {"mpi": "3.1.6"}}}),
    ("mpi.version-differs", "error", "node3", "Open MPI 4.1.6, where 2 hosts have 5.0.7", "one version",
     THREE, {"facts": {"node3": {"mpi": "4.1.6"}}}),
    ("mpi4py.missing", "warning", "node1", "no mpi4py, which others have", "install mpi4py there",
     THREE, {"facts": {"node1": {"mpi4py": None}}}),
    ("mpi4py.version-differs", "warning", "node1", "mpi4py 3.1.6, where 2 hosts have 4.0.3", "one version",
     THREE, {"facts": {"node1": {"mpi4py": "3.1.6"}}}),
    ("torch.missing", "error", "node2", "/usr/bin/python3 has no torch", "--python",
     THREE, {"facts": {"node2": {"torch": None}}}),
    ("torch.version-differs", "error", "node2", "torch 2.5.1, where 2 hosts have 2.6.0", "one version",
     THREE, {"facts": {"node2": {"torch": "2.5.1"}}}),
    ("torch.without-cuda", "warning", "node2", "without CUDA, for a host with 2 GPUs", "--backend gloo",
     THREE, gpus({"torch_cuda": None})),
    ("python.version-differs", "warning", "node3", "Python 3.11, where 2 hosts have 3.13", "one version",
     THREE, {"facts": {"node3": {"python": "3.11.2"}}}),
    ("cuda.version-differs", "warning", "node2", "torch for CUDA 12.1, where 2 hosts", "one version",
     THREE, gpus({"torch_cuda": "12.1"})),
    ("nccl.version-differs", "error", "node2", "NCCL 2.20.5, where 2 hosts have 2.21.5", "one version",
     THREE, gpus({"nccl": "2.20.5"})),
    ("driver.version-differs", "warning", "node2", "driver 550.5, where 2 hosts have 570.1", "one version",
     THREE, gpus({"driver": "550.5"})),
    ("driver.too-old", "error", "node2", "the driver runs CUDA up to 11.8", "install driver 525.60.13",
     THREE, gpus({"driver_cuda": "11.8"})),
    ("numpy.version-differs", "warning", "node2", "numpy 1.26.4, where 2 hosts have 2.3.1", "install",
     THREE, differing("numpy", "2.3.1", "1.26.4")),
    ("kernel.version-differs", "warning", "node2", "kernel 6.8.0-31, where 2 hosts have 6.1.0-39", "install",
     THREE, differing("kernel", "6.1.0-39", "6.8.0-31")),
    ("glibc.version-differs", "warning", "node2", "glibc 2.36, where 2 hosts have 2.41", "install",
     THREE, differing("glibc", "2.41", "2.36")),
    ("mtu.differs", "warning", "node2", "MTU 1500, where 2 hosts have 9000", "ip link",
     THREE, differing("mtu", 9000, 1500)),
    ("nccl.variables-differ", "warning", "node2", "variables of NCCL NCCL_IB_DISABLE=1, where 2 hosts",
     "--env", THREE, one_host(variables="NCCL_IB_DISABLE=1")),
    ("nccl.variables-differ", "warning", "node2", "none, where 2 hosts have NCCL_DEBUG=INFO",
     "--env", THREE, differing("variables", "NCCL_DEBUG=INFO", "")),
    ("user.differs", "warning", "node2", "user root, where 2 hosts have ml", "user= in the hosts file",
     THREE, one_host(user="root")),
    ("slots.above-cores", "warning", "node2", "slots=9 on 8 cores", "slots=8 in the hosts file",
     "node1 slots=2\nnode2 slots=9", {}),
    ("slots.above-gpus", "error", "node2", "slots=4 on 2 GPUs", "slots=2 in the hosts file",
     "node1 slots=2\nnode2 slots=4", gpus({})),
    ("gpu.missing", "error", "node2", "no GPU, where others have", "--exclude",
     THREE, gpus({"gpus": (), "driver": None}, gpus=0)),
    ("gpu.failing", "error", "node2", "nvidia-smi: Unable to determine", "run nvidia-smi there",
     THREE, gpus({"gpus": (), "driver": None, "gpu_error": "nvidia-smi: Unable to determine"})),
    ("gpu.failing", "error", "node2", "1 of 2 GPUs answer", "run nvidia-smi there",
     THREE, gpus({"gpus": (IDLE,)})),
    ("gpu.failing", "error", "node2", "GPU 0 has had 3 uncorrectable memory errors", "replace it",
     THREE, gpus({"gpus": (dataclasses.replace(IDLE, ecc=3), IDLE)})),
    ("gpu.lost", "error", "node2", "the GPU at 0000:0a:00.0 is on the PCI bus", "Xid 79",
     THREE, gpus({"gpus": (dataclasses.replace(IDLE, bus="0000:07:00.0"),), "gpu_host": DRIVEN})),
    ("gpu.not-given", "error", "node2", "none of its GPUs was given to this container", "nvidia.com/gpu=all",
     THREE, one_host(gpu_host=dataclasses.replace(DRIVEN, container=True), gpu_error="no nvidia-smi")),
    ("driver.missing", "warning", "node2", "2 NVIDIA GPUs on the PCI bus, and no", "install the driver",
     THREE, one_host(gpu_host=dataclasses.replace(DRIVEN, module=None))),
    ("driver.too-old", "error", "node2", "driver 535.104.05 does not run CUDA 13.0", "driver 580.65.06",
     THREE, {"facts": {"*": {"gpus": 2}}, "health": {
         "*": TWO_GPUS | {"torch_cuda": "13.0", "driver_cuda": "13.0"},
         "node2": {"driver_cuda": None, "gpu_host": GpuHost(module="535.104.05")}}}),
    ("fabric.down", "error", "node2", "Fabric Manager does not run", "systemctl enable --now",
     THREE, gpus({"gpu_host": GpuHost(module="580.95.05", switches=4, fabric_manager="stopped")})),
    ("gpu.persistence-off", "warning", "node2", "persistence mode is off for GPU 1", "nvidia-persistenced",
     THREE, gpus({"gpus": (IDLE, dataclasses.replace(IDLE, index=1, persistence=False))})),
    ("gpu.busy", "warning", "node2", "GPU 0: 70000 of 81920 MiB in use by processes 41, 42", "wait for them",
     THREE, gpus({"gpus": (dataclasses.replace(IDLE, used=70000, pids=(41, 42)), IDLE)})),
    ("gpu.leased", "warning", "node2", "leased: GPU 0: job j of alice", "muster launch --wait",
     THREE, {**gpus({"gpus": (dataclasses.replace(IDLE, used=70000, pids=(41,)), IDLE)}),
             "other": {"node2": {"leased": LEASED}}}),
    ("disk.full", "error", "node2", "12 MiB free for /home/ml/.muster", "df /home/ml/.muster",
     THREE, one_host(folders=(Folder(HOME.path, 12 << 20, None), TMP))),
    ("disk.full", "error", "node2", "0 B free for /home/ml/.muster", "remove files",
     THREE, one_host(folders=(Folder(HOME.path, 0, "No space left on device"), TMP))),
    ("disk.full", "error", "node2", "12 MiB free for /x;id", "df '/x;id'",
     THREE, one_host(folders=(Folder("/x;id", 12 << 20, None), TMP))),
    ("disk.low", "warning", "node2", "1.5 GiB free for /tmp", "df /tmp",
     THREE, one_host(folders=(HOME, Folder("/tmp", 3 * GIB // 2, None)))),
    ("disk.low", "warning", "node2", "1.5 GiB free for /a b", "df '/a b'",
     THREE, one_host(folders=(HOME, Folder("/a b", 3 * GIB // 2, None)))),
    ("disk.not-writable", "error", "node2", "ml cannot write to /home/ml/.muster: Permission denied", "own",
     THREE, one_host(folders=(Folder(HOME.path, 50 * GIB, "Permission denied"), TMP))),
    ("disk.not-writable", "error", "node2", "Disk quota exceeded", "own",
     THREE, one_host(folders=(Folder(HOME.path, 50 * GIB, "Disk quota exceeded"), TMP))),
    ("disk.no-inodes", "error", "node2", "12 more files at most can be made for /home/ml/.muster", "df -i",
     THREE, one_host(folders=(Folder(HOME.path, 50 * GIB, "No space left on device", inodes=12), TMP))),
    ("disk.no-inodes", "error", "node2", "12 more files at most can be made for /$(id)", "df -i '/$(id)'",
     THREE, one_host(folders=(Folder("/$(id)", 50 * GIB, "No space left on device", inodes=12), TMP))),
    ("disk.noexec", "error", "node2", "/home/ml/.muster is on a file system that starts no programs", "mount",
     THREE, one_host(folders=(dataclasses.replace(HOME, noexec=True), TMP))),
    ("tmpdir.too-long", "error", "node2", "TMPDIR has 86 bytes, and a Unix socket in it room for 85", "set",
     THREE, one_host(folders=(HOME, Folder("/" + "x" * 85, 50 * GIB, None)))),
    ("nofile.low", "error", "node2", "64 open files allowed", "ulimit -n", THREE, one_host(nofile=64)),
    ("shm.small", "warning", "node2", "64 MiB free in /dev/shm for 2 ranks", "256 MiB at least: --shm-size",
     THREE, one_host(shm_free=64 << 20)),
    ("nofile.low", "warning", "node2", "256 open files allowed; 6 ranks may need 1024", "ulimit -n",
     THREE, one_host(nofile=256)),
    ("nofile.low", "warning", "node2", "1024 open files allowed; 256 ranks may need 2048", "ulimit -n",
     "node[1-32] slots=8", one_host(nofile=1024)),
    ("memlock.low", "warning", "node2", "8 MiB of memory may be locked", "ulimit -l",
     THREE, one_host(memlock=8 << 20, rdma=True)),
    ("processes.left", "warning", "node2", "2 processes of job 20261119-080000-beef", "there: kill 41 42",
     THREE, one_host(jobs=(OTHER_JOB,))),
    ("processes.running", "warning", "node2", "job 20261119-080000-beef is running there", "wait for it",
     THREE, one_host(jobs=(dataclasses.replace(OTHER_JOB, kept=True),))),
    ("processes.agent-stopped", "warning", "node2", "whose agent is stopped (SIGSTOP): 40",
     "there: kill -CONT 40", THREE, one_host(jobs=(dataclasses.replace(OTHER_JOB, kept=True, stopped=40),))),
    ("processes.agent-stopped", "warning", "node2", "its agent is stopped (SIGSTOP): 40",
     "there: kill -CONT 40",
     THREE, one_host(jobs=(dataclasses.replace(OTHER_JOB, kept=True, stopped=40, pids=()),))),
    ("host.twice", "warning", "node3", "node3 is the same machine as node1", "the slots of both: node1",
     THREE, {"health": {"node1": {"machine": "a"}, "node2": {"machine": "b"}, "node3": {"machine": "a"}}}),
    ("clock.apart", "warning", "node2", "its clock is 5.000 s ahead of the others", "set-ntp true",
     THREE, {"other": {"node2": {"clock": Clock(5.0, 0.001)}}}),
    ("clock.apart", "warning", "node2", "its clock is 0.250 s behind the others", "chrony",
     THREE, {"other": {"node2": {"clock": Clock(-0.25, 0.001)}}}),
    ("clock.apart", "warning", "", "its clock is 9.000 s ahead of the others", "chrony",
     THREE, {"other": {"*": {"clock": Clock(-9.0, 0.001)}}}),
    ("port.none-free", "error", "node1", "no free port", "free a port of 20000-31999",
     THREE, {"other": {"node1": {"rendezvous": no_port("no free port")}}}),
    ("port.none-free", "warning", "node2", "no free port", "ss -ltnp",
     THREE, {"other": {"node2": {"rendezvous": no_port("no free port")}}}),
    ("pair.unreachable", "error", "node2", "cannot connect to node3 port 20003: 10.0.0.3: timed out",
     "open the ports 20000-31999 of node3", THREE, {"cut": {("node2", "node3"): DROPPED}}),
    ("pair.unreachable", "error", "node2", "cannot connect to any other host: node1 at 10.0.0.1: timed out",
     "addr=", THREE, {"cut": {("node2", "node1"): DROPPED, ("node2", "node3"): DROPPED}}),
    ("address.wrong", "error", "node2", "addr=10.9.9.9 is not an address of this host",
     "give one of 10.0.0.1", "node1\nnode2 addr=10.9.9.9",
     {"cut": dict.fromkeys([("node1", "node2"), ("node2", "node2")], "No route to host")}),
    ("network.split", "error", "node1", "reached by all hosts: 10.0.0.1, 10.1.0.1", "addr=",
     "node[1-2]", {"other": {
         "node1": {"addresses": ("10.0.0.1", "10.1.0.1"),
                   "reached": {"node1": Reached({"10.0.0.1": "eth0"})}},
         "node2": {"reached": {"node1": Reached({"10.1.0.1": "eth1"})}}}}),
    ("network.bridge", "warning", "node2", "rendezvous would be, is reached by docker0", "addr=",
     THREE, {"other": {"node2": {"reached": {"node1": Reached({"10.0.0.1": "docker0"})}}}}),
    ("ssh.port-refused", "error", "node2", "cannot connect", "does sshd run there?",
     THREE, {"errors": {"node2": HostError("ssh.port-refused", "cannot connect", "does sshd run there?")}}),
]  # fmt: skip


def test_programs_need_not_start_in_the_temporary_folder() -> None:
    assert found(THREE, **one_host(folders=(HOME, dataclasses.replace(TMP, noexec=True)))) == ()


@pytest.mark.parametrize(
    ("kind", "severity", "host", "text", "remedy", "hosts", "changes"),
    TABLE,
    ids=[f"{row[0]}-{number}" for number, row in enumerate(TABLE)],
)
def test_what_is_wrong_is_found_alone_on_its_host_with_its_remedy(
    kind: str, severity: str, host: str, text: str, remedy: str, hosts: str, changes: dict[str, Any]
) -> None:
    (finding,) = found(hosts, **changes)
    assert (finding.id, finding.severity, finding.host) == (kind, severity, host)
    assert text in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(("launcher", "kind"), [("mpirun", "mpi.missing"), ("torchrun", "torch.missing")])
def test_a_host_without_a_training_stack_gets_one_by_setup(launcher: LauncherName, kind: str) -> None:
    bare = {"torch": None, "mpirun": None, "mpi": None, "mpi4py": None}
    remedies = {
        finding.id: finding.remedy
        for finding in found(THREE, launcher=launcher, facts={"node2": bare})
        if finding.host == "node2"
    }
    assert remedies[kind].startswith("install a training stack there with `muster setup`, or install ")
    (here,) = [each for each in found("localhost", launcher=launcher, facts={"*": bare}) if each.id == kind]
    assert "setup" not in here.remedy  # which is for hosts behind SSH


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
@pytest.mark.parametrize("text", [THREE, "node1", "localhost slots=2"])
def test_healthy_hosts_have_no_findings(text: str, launcher: LauncherName) -> None:
    assert found(text, launcher) == ()
    assert found(text, launcher, **gpus({})) == ()


def test_open_mpi_needs_an_ipv4_address_where_hosts_meet_over_ipv6() -> None:
    names = [f"node{number}" for number in range(1, 4)]
    address = {name: f"fd00::{name[-1]}" for name in names}
    reached = {name: Reached({address[name]: "eth0"}) for name in names}
    only_six: dict[str, Any] = {
        "facts": {
            name: {
                "addresses": ("172.17.0.1", address[name]),
                "interfaces": {"172.17.0.1": "docker0", address[name]: "eth0"},
            }
            for name in names
        },
        "other": {name: {"addresses": (address[name],), "reached": reached} for name in names},
    }
    findings = found(THREE, **only_six)
    assert [(each.id, each.host, each.severity) for each in findings] == [
        ("mpi.no-ipv4", name, "error") for name in names
    ]
    assert findings[0].text == "Open MPI 5.0.7 cannot start over IPv6 alone, and eth0 has no IPv4 address"
    assert "--launcher torchrun" in findings[0].remedy
    assert found(THREE, "torchrun", **only_six) == ()


def test_torchrun_needs_no_mpi() -> None:
    changes = {"facts": {"node2": {"mpirun": None, "mpi": None, "mpi4py": None}, "node3": {"mpi": "4.1.6"}}}
    assert found(THREE, "torchrun", **changes) == ()


@pytest.mark.parametrize(
    "changes",
    [
        one_host(memlock=65536),  # without RDMA nothing locks memory
        {"facts": {"node2": {"python": "3.13.1"}}},
        {"other": {"node2": {"clock": Clock(0.3, 0.25)}}},  # a slow line cannot tell
        {"facts": {"*": {"mpi4py": None}}},
        {"facts": {"*": {"cores": 64}}},
    ],
)
def test_what_does_no_harm_is_no_finding(changes: dict[str, Any]) -> None:
    assert found(THREE, **changes) == ()


def test_every_failure_is_found_at_once_in_the_order_of_the_hosts_file_errors_first() -> None:
    findings = found(
        "node[1-4] slots=2",
        facts={"node3": {"mpi": "4.1.6", "cores": 1}},
        health={"node2": {"nofile": 500}},
        errors={"node4": HostError("ssh.unreachable", "no answer"), "node1": HostError("ssh.silent", "…")},
    )
    assert [(one.host, one.id) for one in findings] == [
        ("node1", "ssh.silent"),
        ("node2", "nofile.low"),
        ("node3", "mpi.version-differs"),
        ("node3", "slots.above-cores"),
        ("node4", "ssh.unreachable"),
    ]
    assert unfit(findings) == {"node1", "node3", "node4"}


def test_hosts_that_cannot_be_asked_are_no_excuse_for_the_others() -> None:
    gone = {name: HostError("ssh.unreachable", "no answer") for name in ("node1", "node2", "node3")}
    assert len(found(THREE, errors=gone)) == 3


def test_the_ids_are_those_of_the_document() -> None:
    listed = set(re.findall(r"^\| `([a-z0-9.-]+)` ", (ROOT / "docs/check.md").read_text(), re.MULTILINE))
    folders = (
        "core/connect",
        "core/hosts",
        "core/plan",
        "features/bench",
        "features/check",
        "features/leases",
    )
    sources = [path for folder in folders for path in (ROOT / "deploy" / folder).rglob("*.py")]
    others = ("core/agent/gpus.py", "features/containers/[dmp]*.py", "features/slurm/[ap]*.py")
    sources += [path for name in others for path in (ROOT / "deploy").glob(name)]
    texts = [path.read_text() for path in sources]
    used = {
        kind
        for text in texts
        for kind in re.findall(r'"([a-z0-9]+\.(?!(?:py|jsonl?|html|txt)")[a-z][a-z0-9-]+)"', text)
    }
    no_ids = {"mpi4py.run", "muster.deploy", "zlib.error"}
    no_ids.add("core.agent.importer")
    of_git = {"core.fsmonitor", "core.pager", "core.symlinks", "credential.helper", "diff.external"}
    of_git.add("protocol.allow")
    of_remedies = {"ssh.too-many-keys", "ssh.no-known-hosts"}
    used -= no_ids | of_git | of_remedies
    assert used == listed
    # test_ssh.py, test_slurm_options.py, test_hostfile.py, test_container_plan.py; tests/node, cluster
    elsewhere = (
        "gpu.few",  # test_leases.py
        "mpi.no-ipv4",  # above, for all hosts
        *("container.gpus", "slots.no-gpu", "agent.killed", "python.missing", "python.failed"),
        *("bench.", "ssh.", "slurm.", "host."),
    )
    golden = "\n".join(path.read_text() for path in (ROOT / "tests/golden/gpus").glob("*.txt"))
    judged = {row[0] for row in TABLE} | set(re.findall(r"^\w+ \[(\S+)\]", golden, re.MULTILINE))
    assert judged >= {kind for kind in used if not kind.startswith(elsewhere)}


@pytest.mark.parametrize(
    ("driver", "built", "runs"),
    [("13.0", "13.2", True), ("13.2", "13.0", True), ("12.9", "13.0", False), ("13.0", "12.6", True)],
)
def test_a_driver_runs_its_own_major_version_of_cuda_and_older(driver: str, built: str, runs: bool) -> None:
    assert driver_runs(driver, built) is runs


def test_versions_of_drivers_are_compared_as_numbers() -> None:
    assert number("550.9") < number("550.54.14")
    assert number("2.6.0+dfsg-7") == (2, 6, 0)
    assert [oldest_driver(cuda) for cuda in ("10.2", "12.9", "14.0")] == [
        "450.80.02",
        "525.60.13",
        "580.65.06",
    ]


# -- whom a check blames: of hosts that do not reach each other, and of clocks that differ --


@pytest.mark.parametrize(
    ("cut", "blamed"),
    [
        ("13 23", {"node3": "no other host can connect to its port 20003: node1 tried 10.0.0.3: timed out"}),
        ("21 31", {"node1": "no other host can connect to its port 20001: node2 tried 10.0.0.1: timed out"}),
        ("12 13 23 32", dict.fromkeys(["node2", "node3"], "no other host can connect to its port 2000")),
        ("12 13 21 23", dict.fromkeys(["node1", "node2"], "cannot connect to any other host: node")),
        (
            "12 13 21 23 31 32",
            dict.fromkeys(["node1", "node2", "node3"], "cannot connect to any other host:"),
        ),
    ],
    ids=[
        "a worker is shut",
        "the head is shut",
        "two are shut",
        "two reach nobody",
        "nobody reaches anybody",
    ],
)
def test_of_hosts_apart_the_one_in_all_failures_is_blamed(cut: str, blamed: dict[str, str]) -> None:
    pairs = [(f"node{pair[0]}", f"node{pair[1]}") for pair in cut.split()]
    findings = found(THREE, cut=dict.fromkeys(pairs, DROPPED))
    assert [(one.id, one.host, one.peer) for one in findings] == [
        ("pair.unreachable", name, "") for name in blamed
    ]
    assert [one.text[: len(blamed[one.host])] for one in findings] == list(blamed.values())
    assert unfit(findings) == blamed.keys()


def test_a_host_that_reaches_none_differs_from_one_that_none_reaches() -> None:
    cut = dict.fromkeys([("node1", "node2"), ("node1", "node3"), ("node2", "node3")], DROPPED)
    said = {one.host: one.text for one in found(THREE, cut=cut)}
    assert said["node1"].startswith("cannot connect to any other host: node2 at 10.0.0.2")
    assert said["node3"].startswith("no other host can connect to its port 20003")
    both = dict.fromkeys(
        [("node1", "node3"), ("node2", "node3"), ("node3", "node1"), ("node3", "node2")], "-"
    )
    assert [one.host for one in found(THREE, cut=both)] == ["node3", "node3"]


def test_of_two_hosts_the_pair_is_named() -> None:
    (finding,) = found("node[1-2]", cut={("node1", "node2"): DROPPED})
    assert (finding.host, finding.peer) == ("node1", "node2")


@pytest.mark.parametrize(
    ("ahead", "named"),
    [
        ([5.0], {"node1": "5.000 s ahead of this machine's"}),
        ([5.0, 0.0], {"node1": "5.000 s ahead of the others"}),
        ([0.0, 5.0], {"node2": "5.000 s ahead of the others"}),
        ([5.0, -5.0], {"node1": "5.000 s ahead of the others", "node2": "5.000 s behind the others"}),
        ([5.0, 5.0], {"": "5.000 s behind the others"}),
        ([0.0, 5.0, 5.0], dict.fromkeys(["node2", "node3"], "5.000 s ahead of the others")),
    ],
)
def test_without_a_majority_this_clock_counts(ahead: list[float], named: dict[str, str]) -> None:
    clocks = {f"node{n}": {"clock": Clock(seconds, 0.001)} for n, seconds in enumerate(ahead, 1)}
    said = {one.host: one.text for one in found(f"node[1-{len(ahead)}]", other=clocks)}
    assert said == {name: f"its clock is {text}" for name, text in named.items()}


def test_a_pair_that_only_another_network_connects_than_the_ranks_is_found() -> None:
    number = {"node1": 1, "node2": 2, "node3": 3}
    both = {name: {f"10.0.0.{n}": "eth0", f"10.1.0.{n}": "eth1"} for name, n in number.items()}

    def reached(source: str) -> dict[str, Reached]:
        seen = {target: Reached(dict(both[target])) for target in number}
        if source == "node3":  # the ranks' network drops what it sends to node2; the other one is well
            seen["node2"] = Reached({"10.1.0.2": "eth1"}, {"10.0.0.2": DROPPED})
        return seen

    findings = found(
        THREE,
        facts={name: {"addresses": tuple(own), "interfaces": own} for name, own in both.items()},
        other={name: {"addresses": tuple(both[name]), "reached": reached(name)} for name in number},
    )
    assert [(one.id, one.host, one.peer) for one in findings] == [("pair.unreachable", "node3", "node2")]
    assert f"10.0.0.2: {DROPPED}" in findings[0].text


# -- what `muster check` shows: a table, what to do, and JSON --


TEXT = """\
host   slots  cores  GPUs  Open MPI  torch  Python  clock     disk    /dev/shm
node1  2      8      0     5.0.7     2.6.0  3.13.5  +0.00 ms  50 GiB  8 GiB     fit, 1 warning
node2  2      8      0     5.0.7     none   3.13.5  +0.00 ms  50 GiB  8 GiB     1 error, 1 warning
node3  2      -      -     -         -      -       -         -       -         1 error

ERROR   node2: /usr/bin/python3 has no torch  [torch.missing]
        do: install it, or name another interpreter with --python

ERROR   node3: no answer␛[2J  [ssh.unreachable]
        do: is it up?

WARNING node[1-2]: 256 open files allowed; 6 ranks may need 1024  [nofile.low]
        do: raise nofile in /etc/security/limits.d or for sshd (ulimit -n)

1 of 3 hosts are fit, 2 warnings
"""


def examined() -> Checkup:
    hosts = hostfile.parse(THREE)
    examination = examine(
        THREE,
        facts={"node2": {"torch": None}},
        health={"*": {"nofile": 256}},
        errors={"node3": HostError("ssh.unreachable", "no answer\x1b[2J", "is it up?")},
    )
    return Checkup("mpirun", judge(hosts, examination, "mpirun"), hosts, examination)


def test_the_table_has_a_line_a_host_and_each_cause_with_its_remedy_once() -> None:
    assert examined().as_text() == TEXT


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    narrow = examined().as_text(80).splitlines()
    table, wide = narrow[: narrow.index("")], TEXT.splitlines()
    assert max(map(len, table)) <= 80 < max(map(len, wide[: wide.index("")]))
    assert table[0].split()[:4] == ["host", "slots", "cores", "GPUs"]
    assert narrow[narrow.index("") :] == wide[wide.index("") :]


def test_json_has_every_finding_of_every_host() -> None:
    said = json.loads(json.dumps(examined().as_json()))
    assert (said["fit"], said["launcher"]) == (False, "mpirun")
    assert [(host["name"], host["fit"]) for host in said["hosts"]] == [
        ("node1", True),
        ("node2", False),
        ("node3", False),
    ]
    assert [(one["host"], one["id"]) for one in said["findings"]] == [
        ("node1", "nofile.low"),
        ("node2", "torch.missing"),
        ("node2", "nofile.low"),
        ("node3", "ssh.unreachable"),
    ]
    assert said["hosts"][0]["facts"]["mpi"] == "5.0.7"
    assert said["hosts"][0]["clock"] == {"ahead_s": 0.0, "uncertainty_s": 0.0001}
    assert said["hosts"][2]["facts"] is None


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node1"], "node1"),
        (["node1", "node2", "node3", "node5"], "node[1-3,5]"),
        (["node08", "node09", "node10", "node11"], "node[08-11]"),
        (["node1", "node01", "node02"], "node1,node[01-02]"),
        (["node001", "node01", "node1"], "node001,node01,node1"),
        (["node099", "node100", "node09", "node10", "node9"], "node[099-100],node[09-10],node9"),
        (["node0", "node1", "node01", "node12"], "node[0-1],node[01,12]"),
        (["node", "node1"], "node,node1"),
        (["gpu-a", "node2", "gpu-b", "node3"], "gpu-a,node[2-3],gpu-b"),
        (["rack1-n1", "rack1-n2", "rack2-n1"], "rack1-n[1-2],rack2-n1"),
        (["n1.example", "n2.example"], "n[1-2].example"),
        (["10.0.0.7", "10.0.0.8"], "10.0.0.[7-8]"),
        ([""], ""),
        ([], ""),
    ],
)
def test_names_fold_into_ranges_that_the_hosts_file_reads(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded
    if names and names[0]:
        assert {
            host.name
            for host in hostfile.parse(folded.replace(",n", "\nn").replace(",g", "\ng").replace(",r", "\nr"))
        } == set(names)
