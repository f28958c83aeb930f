"""Runs the parts of the GPU proof, one after the other, and writes the page."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from . import report
from .records import Proof, Recorder, read

# Seconds that each part may take; together under nine minutes.
PARTS = {
    "card": 60.0,
    "mpi": 80.0,
    "examples": 150.0,
    "faults": 120.0,
    "speed": 80.0,
    "leases": 40.0,
}
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the proof; the exit status is 1 if a check failed or a part did not end."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    proof = Proof(options.out.resolve(), options.device, options.short)
    if options.only:
        return _run_part(options.only, proof)
    parts = [_supervise(name, proof) for name in options.parts]
    (proof.out / "page.html").write_text(report.page(parts), encoding="utf-8")
    (proof.out / "table.md").write_text(report.table(parts), encoding="utf-8")
    sys.stdout.write(report.summary(parts))
    return 0 if all(part.passed for part in parts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-proof")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--short", action="store_true", help="fewer rounds, to try the proof itself")
    parser.add_argument("--only", choices=tuple(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    return text.split(",")


def _supervise(name: str, proof: Proof) -> report.Part:
    """Run a part as a process, and end it and its children at its time limit."""
    records = proof.out / f"{name}.jsonl"
    records.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "benchmarks.gpu", "--only", name, "--out", str(proof.out)]
    argv += ["--device", proof.device, *(["--short"] if proof.short else [])]
    started = time.monotonic()
    sys.stdout.write(f"{name}: running, at most {PARTS[name]:.0f} s\n")
    sys.stdout.flush()
    with (proof.out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(PARTS[name])
            ended = "" if process.returncode in {0, 1} else f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"timed out after {PARTS[name]:.0f} s"
        finally:
            _kill_group(process)
    part = report.Part(name, tuple(read(records)), time.monotonic() - started, ended)
    (proof.out / f"{name}.json").write_text(json.dumps(asdict(part), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(report.line(part))
    sys.stdout.flush()
    return part


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what a part left, if anything; the agents of its launches end with their parents."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run_part(name: str, proof: Proof) -> int:
    recorder = Recorder(proof.out / f"{name}.jsonl")
    try:
        importlib.import_module(f"benchmarks.gpu.part_{name}").run(recorder, proof)
    except Exception as error:  # noqa: BLE001 - the page names it, and the next part runs
        traceback.print_exc()
        recorder.check("the part ran to its end", holds=False, note=f"{type(error).__name__}: {error}")
    return 1 if any(record.outcome == "fail" for record in recorder.records) else 0


if __name__ == "__main__":
    raise SystemExit(main())
