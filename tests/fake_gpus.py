"""Fake GPUs: an nvidia-smi on PATH, and the driver's folder for a process and those below it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

NVIDIA = "/proc/driver"
SMI = r"""#!/bin/sh
# nvidia-smi for GPUs 0 to {last}: {folder}/processes has a line "NUMBER PID" for each process.
case "$*" in
--query-gpu=index,uuid,mig.mode.current*)  # without another process: leases ask for it often
    gpu=0
    while [ $gpu -le {last} ]; do
        echo "$gpu, GPU-fake-{salt}-$gpu, [N/A]"
        gpu=$((gpu + 1))
    done ;;
--query-gpu=*)
    exec awk -v fields="$(printf '%s' "$1" | cut -d= -f2)" 'BEGIN {{
        count = split(fields, names, ",")
        for (gpu = 0; gpu <= {last}; gpu++) {{
            line = ""
            for (at = 1; at <= count; at++) {{
                name = names[at]; value = "[N/A]"
                if (name == "index") value = gpu
                if (name == "name") value = "Fake"
                if (name == "uuid") value = "GPU-fake-{salt}-" gpu
                if (name == "pci.bus_id") value = sprintf("00000000:%02X:00.0", gpu + 1)
                if (name ~ /^memory|^utilization/) value = 0
                if (name == "memory.total") value = 81559
                if (name == "driver_version") value = "570.86.15"
                line = line (at > 1 ? ", " : "") value
            }}
            print line
        }}
    }}' ;;
--query-compute-apps=*)
    [ -e {folder}/processes ] || exit 0
    while read -r gpu pid; do
        case $1 in
        *=gpu_uuid,*) printf 'GPU-fake-{salt}-%s, %s\n' "$gpu" "$pid" ;;
        *) printf '00000000:%02X:00.0, %s\n' $((gpu + 1)) "$pid" ;;
        esac
    done < {folder}/processes ;;
esac
"""
ENTER = (
    "mount --make-rprivate /; mount -t tmpfs none /proc/driver && mkdir -p {gpus} && "
    "echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15' > /proc/driver/nvidia/version; "
    'exec "$@"'
)


def text(number: int, folder: str, salt: str = "x") -> str:
    """The nvidia-smi of a machine with so many GPUs, and the file `processes` in this folder."""
    return SMI.format(last=number - 1, folder=shlex.quote(folder), salt=salt)


def install(folder: Path, number: int, salt: str = "x") -> Path:
    """Write an nvidia-smi for so many GPUs into a folder, which is to be the first on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    smi = folder / "nvidia-smi"
    smi.write_text(text(number, str(folder), salt))
    smi.chmod(0o755)
    return smi


def use(folder: Path, processes: Iterable[tuple[int, int]]) -> None:
    """Have these processes use these GPUs: pairs of numbers."""
    (folder / "processes").write_text("".join(f"{gpu} {pid}\n" for gpu, pid in processes))


def entered(number: int, argv: Sequence[str]) -> list[str]:
    """The command that runs another where the driver has so many GPUs: in a mount namespace of its own."""
    gpus = " ".join(f"/proc/driver/nvidia/gpus/0000:{gpu + 1:02x}:00.0" for gpu in range(number))
    as_root = [] if os.getuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--mount", "sh", "-c", ENTER.format(gpus=gpus), "sh", *argv]


def environment(folder: Path) -> dict[str, str]:
    """The environment for it."""
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
