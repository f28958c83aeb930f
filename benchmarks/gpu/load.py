"""Uses a GPU until its standard input closes: with a context alone, most of its memory, or matrix products.

    python -m benchmarks.gpu.load context|memory|matmul DEVICE

It prints a line of JSON when it has begun.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import torch

BLOCK = 1 << 30
LEFT = 2 * BLOCK
"""What `memory` leaves free, so that no other program on the GPU fails."""


def main() -> None:
    """Begin, say so, and go on until the input closes."""
    use, device = sys.argv[1], torch.device(sys.argv[2])
    kept = [torch.zeros(1, device=device)]
    if use == "memory":
        kept += fill(device)
    wait_for_gpu(device)
    held = sum(each.numel() for each in kept[1:])
    sys.stdout.write(json.dumps({"pid": os.getpid(), "bytes": held, **about(device)}) + "\n")
    sys.stdout.flush()
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    if use == "matmul":
        rows = 8192 if device.type == "cuda" else 256
        left = torch.randn(rows, rows, device=device).bfloat16()
        while not ended.is_set():
            for _ in range(50):
                torch.mm(left, left)
            wait_for_gpu(device)
    ended.wait()


def fill(device: torch.device) -> list[torch.Tensor]:
    """Blocks of most of the memory that is free; of little on a CPU."""
    if device.type != "cuda":
        return [torch.zeros(1 << 20, dtype=torch.uint8)]
    blocks = []
    while torch.cuda.mem_get_info(device)[0] >= LEFT + BLOCK:
        blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device=device))
    return blocks


def about(device: torch.device) -> dict[str, object]:
    """The versions of torch, and the GPU as torch sees it."""
    versions: dict[str, object] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type != "cuda":
        return versions
    properties = torch.cuda.get_device_properties(device)
    seen = {"name": properties.name, "uuid": f"GPU-{properties.uuid}", "gpus": torch.cuda.device_count()}
    return {**versions, **seen, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def wait_for_gpu(device: torch.device) -> None:
    """Wait until the GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
