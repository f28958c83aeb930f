"""Seconds from the kill of a rank to the first step after it, of a model whose state is a gigabyte.

    python benchmarks/resume.py --rounds 5

Two ranks on this machine train with muster.train and a checkpoint after the first step, which the kernel
keeps in its page cache. `muster launch --preload --max-restarts 1` restarts the job after rank 1 is killed.
The table has the part of each stage, on rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUSTER = Path(sys.executable).with_name("muster")
LAYERS, WIDTH = 15, 4096  # 1.0 GB of float32
# In a restart the weights come from the checkpoint: they are neither initialised nor sent by rank 0 before.
PROGRAM = f"""
import os, time
import torch
from torch import nn
from muster.train import TrainingLoop, process_group, synchronise

def note(what):
    if os.environ["RANK"] == "0":
        print("attempt", os.environ["MUSTER_RESTART"], what, time.time(), flush=True)

note("program began")
torch.set_num_threads(1)
with process_group(backend="gloo") as job:
    note("group joined")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})))
    model.to_empty(device="cpu")
    if not job.restart:
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.01)
    model = synchronise(model, job, init_sync=not job.restart)
    note("model made")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = [torch.ones(2, {WIDTH})] * 1000
    with TrainingLoop(job, {{"model": model, "optimizer": optimizer}}, save_every=1) as loop:
        note("state loaded")
        for inputs in loop.batches(data, steps=1000):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            note("step made")
            if job.restart:
                break
            if loop.step == 2:  # the checkpoint of step 1 is complete
                print("ready", job.rank, os.getpid(), flush=True)
                time.sleep(600)
"""
STAGES = ("program began", "group joined", "model made", "state loaded", "step made")
READY = re.compile(r"ready (\d) (\d+)")


def one(folder: Path) -> dict[str, float]:
    """Kill rank 1 of a job; returns the seconds from then to the end of each stage of the next attempt."""
    (folder / "trains.py").write_text(PROGRAM)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    words = [str(MUSTER), "launch", "--np", "2", "--max-restarts", "1", "--preload", "trains.py"]
    lines: list[str] = []
    struck = 0.0
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        if job.stdout is None:
            raise RuntimeError("no output")
        pids: dict[str, str] = {}
        for line in job.stdout:
            lines.append(line)
            if found := READY.search(line):
                pids[found[1]] = found[2]
                if len(pids) == 2:
                    until_preloaded(folder)
                    struck = time.time()
                    os.kill(int(pids["1"]), 9)
    seen = {what: float(at) - struck for what, at in re.findall(r"attempt 1 (.+) ([\d.]+)\n", "".join(lines))}
    if job.returncode or set(seen) != set(STAGES):
        sys.exit("".join(lines))
    return seen


def until_preloaded(folder: Path) -> None:
    """Wait until the imports for the next attempt are done."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        events = "".join(path.read_text() for path in folder.glob("runs/*/events.jsonl"))
        kept = [json.loads(line) for line in events.splitlines() if "host.preloaded" in line]
        if kept and kept[0]["text"].startswith("the next attempt starts"):
            return
        time.sleep(0.2)
    sys.exit("the imports for the next attempt were not ready within 120 s")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measured = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(one(Path(folder)))
    size = 4 * LAYERS * (WIDTH * WIDTH + WIDTH) / 1e9
    sys.stdout.write(
        f"{size:.1f} GB, 2 ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; "
        f"{rounds} rounds\n\n| seconds from the kill to | median (min-max) |\n|---|---|\n"
    )
    for stage in STAGES:
        row = [each[stage] for each in measured]
        sys.stdout.write(f"| {stage} | {statistics.median(row):.1f} ({min(row):.1f}-{max(row):.1f}) |\n")


if __name__ == "__main__":
    main()
