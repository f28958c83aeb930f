"""What is found of a host's GPUs, on kinds of machines that are trees of files: see trees.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent import gpus
from muster.deploy.core.agent.facts import gpu_count
from muster.deploy.core.decode import from_json
from muster.deploy.core.wire.users import name_of
from muster.deploy.features.check.finding import Finding
from muster.deploy.features.check.host import Needs, of_gpus
from muster.deploy.features.check.messages import GpuReport
from muster.deploy.features.samples.on_host import gpu_meter, sampler
from muster.deploy.features.samples.on_host.sampler import others_on_gpu
from tests.node.trees import END, FOLDER, unpack
from tests.waiting import wait_until

MACHINES = sorted(path.stem for path in FOLDER.glob("*.txt"))
# What all of them are asked for: a container of this image.
NEEDS = Needs(cuda="13.0.2", architecture="x86_64", containers=True)


@pytest.fixture(autouse=True)
def no_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the programs of a tree are found: a stand-in's own `cat` and `printf` are not looked for there."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def machine(name: str, root: Path) -> str:
    return unpack((FOLDER / f"{name}.txt").read_text(), root)


def report(root: Path, **around: Any) -> GpuReport:
    """What the driver reads of a survey there, with changes to what is around the GPUs."""
    said = json.loads(json.dumps(gpus.survey(str(root))))
    said["gpu_host"].update(around)
    return from_json(GpuReport, said)  # type: ignore[no-any-return]


def written(findings: tuple[Finding, ...]) -> str:
    return "".join(f"{one.severity} [{one.id}] {one.text}\n    do: {one.remedy}\n" for one in findings)


def kinds(root: Path, needs: Needs = NEEDS, expected: int = 0, **around: Any) -> list[str]:
    return [one.id for one in of_gpus("node1", report(root, **around), needs, expected)]


@pytest.mark.parametrize("name", MACHINES)
def test_the_findings_of_a_machine_are_those_of_its_golden_file(name: str, tmp_path: Path) -> None:
    expected = machine(name, tmp_path)
    assert written(of_gpus("node1", report(tmp_path), NEEDS)) == expected


def test_ansible_runs_the_same_file_as_a_program_of_its_own(tmp_path: Path) -> None:
    machine("healthy-8-gpus", tmp_path)
    source = Path(gpus.__file__).read_text()
    argv = [sys.executable, "-I", "-", str(tmp_path)]
    done = subprocess.run(argv, input=source, capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(done.stdout) == json.loads(json.dumps(gpus.survey(str(tmp_path))))


def test_a_healthy_node_is_seen_as_a_whole(tmp_path: Path) -> None:
    machine("healthy-8-gpus", tmp_path)
    found = report(tmp_path)
    host = found.gpu_host
    assert [gpu.bus for gpu in found.gpus] == [card.address for card in host.cards]
    assert (len(found.gpus), host.devices, host.switches, host.module) == (8, 8, 4, "580.95.05")
    assert (host.fabric_manager, host.fabric_manager_version) == ("running", "580.95.05")
    assert (host.peer_memory, host.toolkit, host.open_module) == ("nvidia-peermem", True, True)


def test_a_container_is_judged_by_the_gpus_that_it_was_given(tmp_path: Path) -> None:
    machine("fallen-off", tmp_path)
    inside: dict[str, Any] = {"container": True, "fabric_manager": "unknown"}
    assert kinds(tmp_path) == ["gpu.lost"]
    assert kinds(tmp_path, **inside) == ["gpu.failing"]  # which of them is lost, the host knows
    machine("no-toolkit", tmp_path / "other")
    assert kinds(tmp_path / "other", **inside) == []
    (tmp_path / "other/usr/bin/nvidia-smi").unlink()
    assert kinds(tmp_path / "other", devices=0, **inside) == ["gpu.not-given"]


def test_in_a_sandbox_the_gpus_are_found_by_their_device_files(tmp_path: Path) -> None:
    machine("sandbox", tmp_path)
    sandbox, nothing = gpus.Machine(str(tmp_path)), gpus.Machine(str(tmp_path / "proc"))
    assert (gpu_count(sandbox), gpu_count(nothing)) == (1, 0)
    assert gpu_meter.find(sandbox) == f"{tmp_path}/usr/local/nvidia/bin/nvidia-smi"
    assert gpu_meter.find(nothing) == ""


def test_a_card_that_a_virtual_machine_has_is_none_of_the_hosts(tmp_path: Path) -> None:
    machine("no-driver", tmp_path)
    cards = [{"address": "0000:07:00.0", "device": "0x2330", "driver": "vfio-pci"}]
    assert kinds(tmp_path, cards=cards) == []
    assert kinds(tmp_path, cards=[cards[0] | {"driver": ""}]) == ["driver.missing"]


def test_what_nobody_asks_for_is_no_finding(tmp_path: Path) -> None:
    machine("no-toolkit", tmp_path)
    assert kinds(tmp_path, Needs()) == []
    machine("gh200", tmp_path / "other")
    assert kinds(tmp_path / "other", Needs(architecture="aarch64")) == []


def test_a_machine_without_gpus_has_nothing_to_find(tmp_path: Path) -> None:
    assert kinds(tmp_path) == []
    smi = tmp_path / "usr/bin/nvidia-smi"
    smi.parent.mkdir(parents=True)
    script(smi, "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9")
    assert (kinds(tmp_path), report(tmp_path).gpu_error) == ([], None)  # an image brings one along


# -- nvidia-smi --


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    """The nvidia-smi of a host with a driver, whose answers the test writes."""
    unpack(
        f"A host\n@ /sys/module/nvidia/version\n570.86.15\n@ /usr/bin/nvidia-smi +x\n#!/bin/sh\n{END}",
        tmp_path,
    )
    return tmp_path / "usr/bin/nvidia-smi"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


GPUS = """\
0, 4, 143771, 0, GPU-aaaa, 570.86.15, 00000000:07:00.0, Enabled, Disabled
1, 70123, 143771, 2, GPU-bbbb, 570.86.15, 00000000:0A:00.0, Disabled, Disabled
2, 12, 24564, [N/A], GPU-cccc, 570.86.15, 00000000:44:00.0, Disabled, [N/A]
"""


def test_the_state_of_gpus_and_who_is_on_them(smi: Path, tmp_path: Path) -> None:
    answers = f"*compute-apps*) echo 'GPU-bbbb, 41'; echo 'GPU-bbbb, 42';; *query-gpu*) cat <<X\n{GPUS}X\n;;"
    script(smi, f"case $1 in {answers} esac")
    found = report(tmp_path)
    assert found.gpu_error is None
    assert [(gpu.index, gpu.used, gpu.ecc, gpu.pids, gpu.persistence) for gpu in found.gpus] == [
        (0, 4, 0, (), True),
        (1, 70123, 2, (41, 42), False),
        (2, 12, 0, (), False),
    ]


def test_a_failing_driver_is_quoted(smi: Path, tmp_path: Path) -> None:
    script(smi, "echo 'Unable to determine the device handle for GPU0: Unknown Error'; exit 255")
    found = report(tmp_path)
    words = "nvidia-smi: Unable to determine the device handle for GPU0: Unknown Error"
    assert (found.gpus, found.gpu_error) == ((), words)


def test_a_driver_that_hangs_is_given_up(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "SMI_SECONDS", 0.2)
    script(smi, "exec sleep 20")
    found = report(tmp_path)
    assert found.gpus == ()
    assert found.gpu_error is not None and "timed out after 0.2 seconds" in found.gpu_error


def test_a_driver_without_its_program_is_said(smi: Path, tmp_path: Path) -> None:
    smi.unlink()
    assert report(tmp_path).gpu_error == "there is no nvidia-smi"


@pytest.mark.parametrize(
    ("loaded", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
            "535.104.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build", "580.95.05"),
        ("", None),
    ],
)
def test_the_version_of_the_loaded_module_is_read(loaded: str, version: str | None, tmp_path: Path) -> None:
    assert gpus.module_version(gpus.Machine(str(tmp_path)), loaded) == version


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:4E:00.0", "0000:4e:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("0000:0f:00.0", "0000:0f:00.0"),
        ("[N/A]", ""),
    ],
)
def test_the_address_of_a_gpu_is_written_as_the_kernel_writes_it(text: str, address: str) -> None:
    assert gpus.pci_address(text) == address


# -- the processes that a rank without memory on its GPU has found there --


WRAPPER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture
def wrapper() -> Iterator[subprocess.Popen[bytes]]:
    """The wrapper of a rank, with its program below it."""
    with subprocess.Popen([sys.executable, "-c", WRAPPER], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate()


def full(*pids: int) -> str:
    others = "".join(f"Process {pid} has 70.25 GiB memory in use. " for pid in pids)
    return f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {others}\n"


def test_each_live_user_is_named(wrapper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", Path("/proc/self/ns/pid").stat().st_ino)
    children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children")
    program = int(wait_until(lambda: children.read_text().split(), "the program")[0])
    found = others_on_gpu([full(program, os.getpid(), 4_000_000), "\n"], {3: wrapper.pid})
    assert [(user["pid"], user.get("rank")) for user in found] == [(program, 3), (os.getpid(), None)]
    assert {user["user"] for user in found} == {name_of(os.getuid())}
    assert found[1]["program"] == Path(f"/proc/{os.getpid()}/comm").read_text().strip()


def test_without_the_numbers_of_the_host_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", 1)
    assert others_on_gpu([full(os.getpid())], {}) == []


def test_a_message_about_no_other_process_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INITIAL", Path("/proc/self/ns/pid").stat().st_ino)
    assert others_on_gpu([full(), f"Process {os.getpid()} has 1 GiB memory in use"], {}) == []
