"""Every path below ~/.muster on a host, for the driver's plan and for the agent.

Paths are strings, because the home may be that of another machine.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple


class MusterPaths(NamedTuple):
    """Muster's folder in a user's home."""

    root: str

    @classmethod
    def of_home(cls, home: str) -> MusterPaths:
        """`~/.muster`."""
        return cls(posixpath.join(home, ".muster"))

    @property
    def jobs(self) -> str:
        """A folder for each job."""
        return posixpath.join(self.root, "jobs")

    @property
    def store(self) -> str:
        """Contents of files by their digest (core/wire/store.py)."""
        return posixpath.join(self.root, "store")

    def of(self, name: str) -> str:
        """A folder of a feature."""
        return posixpath.join(self.root, name)

    def kept(self, project: str) -> str:
        """The folders of a project that outlive its jobs."""
        return posixpath.join(self.root, "kept", project)

    def job(self, name: str) -> JobPaths:
        """The folder of one job."""
        return JobPaths(posixpath.join(self.jobs, name))


class JobPaths(NamedTuple):
    """The folder of one job on one host, and its contents."""

    folder: str

    @classmethod
    def of(cls, home: str, job: str) -> JobPaths:
        """The folder of a job in a home."""
        return MusterPaths.of_home(home).job(job)

    @property
    def code(self) -> str:
        """The job's own copy of the working tree."""
        return posixpath.join(self.folder, "code")

    @property
    def code_list(self) -> str:
        """The list of that copy's files, so that they can be removed again."""
        return posixpath.join(self.folder, "code.json")

    @property
    def library(self) -> str:
        """Modules that every rank can import too, last on PYTHONPATH (core/agent/rank.py)."""
        return posixpath.join(self.folder, "lib")

    @property
    def programs(self) -> str:
        """`muster-rank` and `muster-rsh`, first on PATH."""
        return posixpath.join(self.folder, "bin")

    @property
    def hostfile(self) -> str:
        """The hosts of the job with their slots."""
        return posixpath.join(self.folder, "hostfile")

    @property
    def out(self) -> str:
        """The output files of the program: metrics, checkpoints."""
        return posixpath.join(self.folder, "out")

    @property
    def logs(self) -> str:
        """The output and the end of each rank of this host (core/agent/rank.py)."""
        return posixpath.join(self.folder, "logs")

    @property
    def run(self) -> str:
        """On the head: the driver's records, and its logs if it is detached (core/wire/job_folders.py)."""
        return posixpath.join(self.folder, "run")

    @property
    def driver(self) -> str:
        """On the head of a detached job: the code of its driver."""
        return posixpath.join(self.folder, "driver")

    @property
    def identity(self) -> str:
        """A file with a random text, by which the driver knows that hosts share the folder."""
        return posixpath.join(self.folder, "identity")

    def lock(self, host: str) -> str:
        """The lock that a host's agent holds as long as the job runs there; hosts may share a home."""
        return posixpath.join(self.folder, f"lock.{host}")

    def agent(self, host: str) -> str:
        """A file with the path of the folder of the local socket of a host's agent."""
        return posixpath.join(self.folder, f"agent.{host}")
