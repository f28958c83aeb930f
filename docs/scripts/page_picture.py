"""Takes the picture of a page: docs/images/page.png, the page of a run that fails, from a real run.

    python docs/scripts/page_picture.py

It needs Chromium (Debian: chromium) and pillow. The run has four ranks on this machine, without torch.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "page.png"
WIDTH, HEIGHT = 1180, 1034
COLOURS = 128
PROGRAM = """import json
import math
import os
import time

rank, out = int(os.environ["RANK"]), os.environ["MUSTER_OUT"]
for step in range(1, 121):
    time.sleep(0.05)
    loss = 2.3 * math.exp(-step / 40) + 0.06 * math.sin(step * 1.7) ** 2 + 0.2
    if rank == 0:
        line = {"step": step, "loss": loss, "lr": 0.1 * math.cos(step / 90)}
        line["samples_per_second"] = 1900 + 40 * math.sin(step)
        with open(f"{out}/steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")
    if step % 20 == 0:
        print(f"step {step} loss {loss:.3f}", flush=True)
    if rank == 2 and step == 110:
        raise ValueError(f"loss is nan at step {step}")
"""


def main() -> None:
    """Launch, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="muster-page-") as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / "hosts.txt").write_text("localhost slots=4\n")
        (project / "train.py").write_text(PROGRAM)
        (project / ".gitignore").write_text("runs/\n")
        git = ["git", "-C", str(project), "-c", "user.name=ml", "-c", "user.email=ml@example.org"]
        for arguments in (["init"], ["add", "."], ["commit", "--message", "lr 0.1"]):
            subprocess.run([*git, *arguments], check=True, capture_output=True)
        command = [str(Path(sys.executable).with_name("muster")), "launch", "train.py", "--lr", "0.1"]
        subprocess.run(command, cwd=project, env={**os.environ, "HOME": folder}, check=False)
        (page,) = project.glob("runs/*/report.html")
        page.write_text(page.read_text().replace(folder, "/home/ml").replace(sys.prefix, "/home/ml/venv"))
        take(page, PICTURE, WIDTH, HEIGHT)


def take(page: Path, picture: Path, width: int, height: int) -> None:
    """Take a picture of a page: a number of pixels from its upper left corner, in light colours."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="muster-page-") as folder:
        shot = Path(folder) / "page.png"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        light = "--blink-settings=preferredColorScheme=1"
        command = [browser, *options, light, f"--screenshot={shot}", f"file://{page}"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        taken = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    taken.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(picture, optimize=True)
    sys.stdout.write(f"{picture.relative_to(ROOT)}: {picture.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
