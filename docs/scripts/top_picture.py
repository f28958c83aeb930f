"""Takes the picture of `muster top`: docs/images/top.svg, while a job of eight ranks runs.

    python docs/scripts/top_picture.py [HOSTS]

HOSTS is a hosts file with its `.muster` beside it, such as that of `muster cluster up`; the job takes two
ranks on each of its hosts. Without it the job runs on this machine, and the picture shows its ranks.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from muster.deploy.core.errors import MusterError
from muster.deploy.core.job.find import LocalRuns, LocatedJob, jobs_at
from muster.deploy.features.top.app import TopApp
from muster.deploy.features.top.sources import JobSource
from muster.deploy.features.top.top_history import TopHistory

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "top.svg"
COLUMNS, ROWS, SECONDS = 100, 32, 40.0
# Ranks that compute, one slower than the others, and a loss that falls.
PROGRAM = """import json
import math
import os
import time

rank, out = int(os.environ["RANK"]), os.environ["MUSTER_OUT"]
memory = bytearray((1 + rank % 3) << 25)
for step in range(1, 401):
    began = time.perf_counter()
    sum(number * number for number in range(20_000 * (1 + rank % 4)))
    time.sleep(0.3 - time.time() % 0.3)  # as if each step ended with a collective: ranks stay together
    loss = 2.3 * math.exp(-step / 90) + 0.2
    if rank == 0:
        line = {"step": step, "loss": loss, "step_seconds": time.perf_counter() - began}
        with open(f"{out}/steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")
    print(f"step {step}/400 loss {loss:.3f}", flush=True)
"""


async def picture(runs: Path, launch: subprocess.Popen[bytes]) -> str:
    """The screen as SVG, after some seconds, so that the sparklines have data."""
    while not (jobs := _running(runs)):
        if launch.poll() is not None:
            raise SystemExit("the job has ended before it ran")
        await asyncio.sleep(0.2)
    app = TopApp(JobSource(jobs[0]), TopHistory())
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await pilot.pause(SECONDS)
        return app.export_screenshot(title="muster top")


def _running(runs: Path) -> list[LocatedJob]:
    try:
        return [job for job in jobs_at([LocalRuns(runs)]) if job.state.running]
    except (MusterError, OSError):
        return []


def without_requests(svg: str) -> str:
    """The picture without the font that it would fetch from another site."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace')


def main(arguments: list[str]) -> None:
    """Launch, take the picture, and end the job."""
    with tempfile.TemporaryDirectory(prefix="muster-top-") as folder:
        project = Path(folder)
        hosts = Path(arguments[0]).resolve() if arguments else project / "hosts.txt"
        if not arguments:
            hosts.write_text("localhost slots=8\n")
        (project / "train.py").write_text(PROGRAM)
        muster = Path(sys.executable).with_name("muster")
        command = [
            str(muster),
            "launch",
            "--hosts",
            str(hosts),
            "--per-host",
            "2" if arguments else "8",
            "train.py",
        ]
        with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL) as launch:
            try:
                drawn = asyncio.run(picture(project / "runs", launch))
            finally:
                launch.send_signal(signal.SIGINT)
    PICTURE.write_text(without_requests(drawn))
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
