"""The first process of a container: the driver of its host, before anything else starts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

SMI = """#!/bin/sh
echo
echo "==============NVSMI LOG=============="
echo
echo "Driver Version                            : 570.86.15"
echo "CUDA Version                              : {cuda}"
"""


def start(
    cluster: Cluster, folder: Path, smi: str, image_cuda: str = "13.2.1", *words: str
) -> tuple[int, str, str]:
    """Start the image as one with CUDA, on a host whose nvidia-smi is this script, to print its arguments."""
    (folder / "nvidia-smi").write_text(smi)
    (folder / "nvidia-smi").chmod(0o755)
    (folder / "cuda").write_text(image_cuda + "\n" if image_cuda else "")
    mounts = ["--volume", f"{folder}/nvidia-smi:/usr/bin/nvidia-smi:ro"]
    mounts += ["--volume", f"{folder}/cuda:/usr/share/muster/cuda:ro"]
    image = cluster.compose("config", "--images", "keys").strip()
    command = ("docker", "run", "--rm", *mounts, *words, image, "echo", "it runs", "and 'so' on")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_driver_too_old_for_the_images_cuda_ends_the_start(cluster: Cluster, tmp_path: Path) -> None:
    status, output, errors = start(cluster, tmp_path, SMI.format(cuda="12.8"))
    assert (status, output) == (3, "")
    assert "made with CUDA 13.2.1, and the driver of this host runs CUDA up to 12.8." in errors
    assert "take an image for CUDA 12, or start it without GPUs" in errors
    assert "MUSTER_WITHOUT_GPUS=1 in its environment" in errors
    assert "Traceback" not in errors


def test_it_starts_with_an_old_driver_for_programs_on_the_cpu(cluster: Cluster, tmp_path: Path) -> None:
    smi = SMI.format(cuda="12.8")
    status, output, errors = start(cluster, tmp_path, smi, "13.2.1", "--env", "MUSTER_WITHOUT_GPUS=1")
    assert (status, output) == (0, "it runs and 'so' on\n")
    assert "made with CUDA 13.2.1, and the driver of this host runs CUDA up to 12.8." in errors
    assert "It starts all the same, as MUSTER_WITHOUT_GPUS says" in errors


@pytest.mark.parametrize(
    ("smi", "image_cuda"),
    [
        (SMI.format(cuda="13.0"), "13.2.1"),
        (SMI.replace("CUDA Version    ", "CUDA UMD Version").format(cuda="13.4"), "13.2.1"),
        (SMI.format(cuda="11.8"), ""),
    ],
    ids=["same major version", "as newer drivers say it", "image without CUDA"],
)
def test_a_new_driver_is_not_mentioned(cluster: Cluster, tmp_path: Path, smi: str, image_cuda: str) -> None:
    assert start(cluster, tmp_path, smi, image_cuda) == (0, "it runs and 'so' on\n", "")


def test_a_driver_that_does_not_answer_is_named_and_the_node_starts(cluster: Cluster, tmp_path: Path) -> None:
    smi = "#!/bin/sh\necho Failed to initialize NVML: Driver/library version mismatch; exit 18"
    status, output, errors = start(cluster, tmp_path, smi)
    assert (status, output) == (0, "it runs and 'so' on\n")
    assert "muster: the NVIDIA driver does not say which CUDA it runs" in errors
