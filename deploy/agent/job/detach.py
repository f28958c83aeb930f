"""The start of a driver on this host, for a job that goes on without the machine that launched it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ...common.frames import Frame
from ...common.runs import make_private
from ...common.store import Store

DRIVER = "muster.deploy.jobs.detached_main"
START = f"import sys; sys.path.insert(0, sys.argv[1]); from {DRIVER} import main; main(sys.argv[2])"


class Detaching:
    """Puts the driver's code into the job's folder, starts it, and passes on its first word."""

    def __init__(self, home: Path, send: Callable[[Frame], None]) -> None:
        self.jobs, self.store, self.send = home / "jobs", Store(home / "store"), send

    def do_detach(self, request: Frame, payload: bytes) -> Frame:
        """Start a driver for the job, which it reads from its stdin: the environment may hold secrets."""
        folder = self.jobs / request["name"]
        make_private(self.jobs.parent, self.jobs, folder, folder / "run")
        self.store.check_out(request["code"], folder / "driver")
        with open(folder / "run" / "driver.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", START, str(folder / "driver"), str(folder)],
                cwd=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._converse, args=(process, request["job"], folder), daemon=True).start()
        return {}

    def _converse(self, process: subprocess.Popen[bytes], job: Frame, folder: Path) -> None:
        """Hand over the job; the first line that comes back is that it runs, or why it does not.

        The driver leaves this process at once (it forks), so the keeper's end is not its own. Until its first
        line it depends on us all the same: without a reader it gives up.
        """
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  # both are pipes
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
        line = process.stdout.readline()
        log = folder / "run" / "driver.log"
        said = (
            json.loads(line) if line else {"error": log.read_text(errors="replace") if log.exists() else ""}
        )
        self.send({"event": "detached", **said})
