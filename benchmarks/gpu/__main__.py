"""Runs the parts of the GPU proof, one after the other, and writes the page."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from muster.deploy.core.agent.processes import PR_SET_CHILD_SUBREAPER, end_descendants, prctl

from . import report
from .records import Proof, Recorder, read

# Seconds that each part may take; together under nine minutes.
PARTS = {
    "card": 45.0,
    "mpi": 75.0,
    "examples": 170.0,
    "faults": 110.0,
    "speed": 85.0,
    "leases": 40.0,
}
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the proof; the exit status is 1 if a check failed or a part did not end."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    proof = Proof(options.out.resolve(), options.device, options.short, options.patience)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a part leaves becomes a child of this process, and is ended
    parts = [_supervise(name, proof) for name in options.parts]
    (proof.out / "page.html").write_text(report.page(parts), encoding="utf-8")
    (proof.out / "table.md").write_text(report.table(parts), encoding="utf-8")
    _say(report.summary(parts))
    return 0 if all(part.passed for part in parts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-proof")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--short", action="store_true", help="fewer rounds, to try the proof itself")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="makes every limit of time so much longer"
    )
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    return text.split(",")


def _supervise(name: str, proof: Proof) -> report.Part:
    """Run a part as a process, and end it and everything that it started at its time limit."""
    records = proof.out / f"{name}.jsonl"
    records.unlink(missing_ok=True)
    seconds = PARTS[name] * proof.patience
    _say(f"{name}: running, at most {seconds:.0f} s\n")
    started = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=_run_part, args=(name, proof))
    process.start()
    try:
        process.join(seconds)
        code = process.exitcode
        ended = f"timed out after {seconds:.0f} s" if code is None else ""
        ended = ended or (f"exit status {code}" if code else "")
    finally:
        end_descendants()
        process.join()
    part = report.Part(name, tuple(read(records)), time.monotonic() - started, ended)
    (proof.out / f"{name}.json").write_text(json.dumps(asdict(part), indent=1) + "\n", encoding="utf-8")
    _say(report.line(part))
    return part


def _run_part(name: str, proof: Proof) -> None:
    """Be the process of a part. Its output goes to its log; its programs are those of this environment."""
    log = os.open(proof.out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(ROOT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ.update(PATH=path, PYTHONUNBUFFERED="1", MUSTER_PROGRESS="off")
    faulthandler.dump_traceback_later(max(1.0, PARTS[name] * proof.patience - 2))  # if it hangs
    recorder = Recorder(proof.out / f"{name}.jsonl")
    with recorder.step("the part ran to its end"):
        importlib.import_module(f"benchmarks.gpu.part_{name}").run(recorder, proof)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
