"""The files that the program of a job wrote on a host."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...core.agent.supervisor import JobHandler
from ...core.wire.frames import Frame
from ...core.wire.paths import JobPaths
from ...core.wire.private_folders import identity_of_folder
from ...core.wire.written import Search, counted


class Outputs(JobHandler):
    """Answers how many files there are, and which is the largest."""

    def do_outputs(self, request: Frame, payload: bytes) -> Frame:
        """Those beside the code, those in $MUSTER_OUT, and the mark of the job's folder (`Written`)."""
        folder, mark = self.job.job["folder"], None
        beside, out = Search(folder, has_limits=True), Search(folder, has_limits=True)
        with contextlib.suppress(OSError):  # a full disk, perhaps filled by these files
            mark = identity_of_folder(Path(JobPaths(folder).identity))
        return {
            "beside": counted(beside.beside_code(), beside),
            "out": counted(out.out(), out),
            "folder": mark,
        }
