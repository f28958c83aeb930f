"""The files that the program of a job wrote on a host."""

from __future__ import annotations

from pathlib import Path

from ...core.agent.supervisor import JobHandler
from ...core.wire.frames import Frame
from ...core.wire.paths import JobPaths
from ...core.wire.private_folders import identity_of_folder
from ...core.wire.written import Search, counted


class Outputs(JobHandler):
    """Answers how many files there are, and which is the largest."""

    def do_outputs(self, request: Frame, payload: bytes) -> Frame:
        """Those beside the code, and those in $MUSTER_OUT.

        `folder` is equal on hosts that share the job's folder.
        """
        folder = self.job.job["folder"]
        beside, out = Search(folder, has_limits=True), Search(folder, has_limits=True)
        return {
            "beside": counted(beside.beside_code(), beside),
            "out": counted(out.out(), out),
            "folder": identity_of_folder(Path(JobPaths(folder).identity)),
        }
