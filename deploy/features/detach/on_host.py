"""The start of a driver on this host, for a job that continues without the machine that launched it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ...core.wire.frames import Frame
from ...core.wire.paths import JobPaths, MusterPaths
from ...core.wire.private_folders import make_private
from ...core.wire.store import Store

START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from muster.deploy.features.all_features import start; start('detach.detached_main', sys.argv[2])"
)


class Detaching:
    """Puts the driver's code into the job's folder, starts it, and passes on its first line."""

    def __init__(self, muster_root: Path, send: Callable[[Frame], None]) -> None:
        self._paths, self.send = MusterPaths(str(muster_root)), send

    def do_detach(self, request: Frame, payload: bytes) -> Frame:
        """Start a driver, which reads the job from its stdin: the job's environment may hold secrets."""
        paths = self._paths.job(request["name"])
        make_private(*map(Path, (self._paths.root, self._paths.jobs, paths.folder, paths.run)))
        # Held by the driver from its start on. It may connect or install packages for long before it makes
        # the run, and `muster clean` must not take the folder for that of a job that is over.
        lock = os.open(paths.lock("start"), os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        Store(Path(self._paths.store)).check_out(request["code"], Path(paths.driver))
        with open(os.path.join(paths.run, "driver.log"), "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", START, paths.driver, paths.folder],
                cwd=paths.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
            )
        os.close(lock)
        threading.Thread(target=self._converse, args=(process, request["job"], paths), daemon=True).start()
        return {}

    def _converse(self, process: subprocess.Popen[bytes], job: Frame, paths: JobPaths) -> None:
        """Send the job to the driver; its first line reports that the job runs, or why it does not.

        The driver forks at once and leaves this process, so the agent's end does not end it. Until its first
        line it still depends on the agent: without a reader it gives up.
        """
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  # both are pipes
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
        line = process.stdout.readline()
        log = Path(paths.run, "driver.log")
        answer = (
            json.loads(line) if line else {"error": log.read_text(errors="replace") if log.exists() else ""}
        )
        self.send({"event": "detached", **answer})
