"""What the image's recipe does that no build here shows: what of CUDA reaches the image that runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from muster.deploy.features.image.image_versions import load

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
# Libraries that torch is linked to, as ldd prints them in NVIDIA's image; the last is the driver's.
LDD = """\
\tlibtorch_cpu.so => /install/usr/local/lib/python3.12/dist-packages/torch/lib/libtorch_cpu.so (0x1)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)
\tlibopenblas.so.0 => /usr/lib/x86_64-linux-gnu/libopenblas.so.0 (0x3)
\tlibcupti.so.13 => /usr/local/cuda/lib64/libcupti.so.13 (0x4)
\tlibcudart.so.13 => /usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13 (0x5)
\tlibmpi.so.40 => /usr/local/lib/libmpi.so.40 (0x6)
\tlibcuda.so.1 => /usr/lib/x86_64-linux-gnu/libcuda.so.1 (0x7)
"""
PACKAGES = {
    "/lib/x86_64-linux-gnu/libc.so.6": "libc6:amd64",
    "/usr/lib/x86_64-linux-gnu/libopenblas.so.0": "libopenblas0-pthread:amd64",
    "/usr/local/cuda/lib64/libcupti.so.13": "cuda-cupti-13-0",
    "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13": "cuda-cudart-13-0",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "libnvidia-compute-580:amd64",
}
PROGRAMS = {
    "find": f"cat <<'END'\n{LDD}END",
    "realpath": 'printf "%s\\n" "$@"',
    "dpkg-query": 'shift; for path; do case "$path" in\n'
    + "\n".join(f'{path}) echo "{package}: {path}" ;;' for path, package in PACKAGES.items())
    + "\nesac; done",
}


def test_the_image_that_runs_has_cudas_libraries_that_torch_is_linked_to(tmp_path: Path) -> None:
    script = (DOCKER / "build/libraries.sh").read_text()
    pipeline = script.replace("/install/libraries.txt", f"{tmp_path}/libraries.txt")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(("bash", "-euo", "pipefail", "-c", pipeline), env=env, check=True, timeout=60)
    wanted = ["cuda-cudart-13-0", "cuda-cupti-13-0", "libc6", "libopenblas0-pthread"]
    assert (tmp_path / "libraries.txt").read_text().splitlines() == wanted


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("\tlibcupti.so.13 => not found", "libcupti.so.13"),
        ("\tlibcuda.so.1 => not found", ""),
        ("\tlibnvidia-ml.so.1 => not found", ""),
        ("\tlibc.so.6 => /lib/libc.so.6 (0x1)", ""),
    ],
)
def test_a_library_that_is_missing_ends_the_build_but_for_the_drivers(line: str, reported: str) -> None:
    text = (DOCKER / "Dockerfile").read_text()
    (program,) = re.findall(r"awk '(/not found/ .*?)'", text)
    done = subprocess.run(("awk", program), input=line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == reported


def test_triton_of_each_cuda_track_is_pinned_by_hashes() -> None:
    tracks = [track for track in load().values() if track.cuda]
    assert len(tracks) == 2
    for track in tracks:
        pins = (DOCKER / f"requirements/triton-{track.triton}.txt").read_text()
        assert f"triton=={track.triton} \\\n    --hash=sha256:" in pins


def test_no_role_needs_a_module_that_installs_what_nobody_records() -> None:
    tasks = [path.read_text() for path in (ROOT / "ansible").rglob("*.yml")]
    assert len(tasks) > 40
    assert not [text for text in tasks if "deb822_repository:" in text]


def test_no_pipe_of_a_build_ends_before_its_program_has_said_all() -> None:
    """`grep -q` ends at its first hit; under pipefail, what still writes to it fails the build."""
    recipes = [path for path in DOCKER.rglob("*") if "Dockerfile" in path.name or path.suffix == ".sh"]
    assert len(recipes) > 10
    text = {path.name: path.read_text() for path in recipes}
    assert not [name for name in text if re.search(r"\| *grep -\w*q", text[name])]
