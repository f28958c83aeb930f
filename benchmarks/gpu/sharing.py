"""Runs a program on the GPU that `muster launch --gpus 0` hides from its ranks: `sharing.py PROGRAM ARGS`.

A launch leases its GPUs, so that no other one gets them. The jobs of the proof share the only one.
"""

from __future__ import annotations

import os
import runpy
import sys

if not os.environ.get("CUDA_VISIBLE_DEVICES"):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
