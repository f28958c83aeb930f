"""The folder of one launch on the driver's machine: `runs/<job>/` with plan, logs, metrics and result."""

from __future__ import annotations

import contextlib
import json
import resource
from pathlib import Path
from typing import IO

from deploy.errors import UsageError
from deploy.plan import LaunchPlan
from deploy.result import LaunchResult


class RunFolder:
    """Every path of a run, and a watcher that writes its logs: the same layout for every launcher."""

    def __init__(self, runs: Path, job: str) -> None:
        self.path = runs / job
        self.logs = self.path / "logs"
        self._open: dict[str, IO[bytes]] = {}

    def create(self, plan: LaunchPlan) -> None:
        """Make the folder and write the plan."""
        try:
            self.logs.mkdir(parents=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise UsageError(f"--runs {self.path.parent}: {error.strerror}") from None
        (self.path / "plan.txt").write_text(str(plan))
        # Two files a rank: the soft limit of 1024 would do for 500 ranks.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def log_of(self, rank: int, host: str, stream: str) -> Path:
        """The log of one stream of a rank: `logs/rank-0007@node2.err`."""
        return self.logs / f"rank-{rank:04d}@{host}.{stream}"

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """Append what a rank printed, byte for byte."""
        self._append(self.log_of(rank, host, stream), text)

    def launcher(self, host: str, text: str) -> None:
        """Append a line of mpirun or torchrun itself."""
        self._append(self.logs / f"launcher@{host}.log", text)

    def finish(self, result: LaunchResult, metrics: str | None) -> None:
        """Close the logs; write the result, whole or not at all, and the metrics if there are any."""
        for file in self._open.values():
            file.close()
        if metrics is not None:
            (self.path / "metrics.jsonl").write_text(metrics)
        draft = self.path / "result.json.new"
        draft.write_text(json.dumps(result.as_json(), indent=2) + "\n")
        draft.replace(self.path / "result.json")

    def _append(self, path: Path, text: str) -> None:
        if path.name not in self._open:
            self._open[path.name] = path.open("ab", buffering=0)
        self._open[path.name].write(text.encode(errors="surrogateescape"))
