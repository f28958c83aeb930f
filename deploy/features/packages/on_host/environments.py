"""Lists, makes and removes the environments of packages on this host, under ~/.muster/envs.

An environment is a folder named after its lock's digest. It is valid only with the record `muster.json`,
which appears by a rename after everything else: a half-made environment is never used. A lock beside the
folder is exclusive for a process that makes or removes it, and shared by all jobs that use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ....core.agent.facts import glibc_version, mpirun_version
from ....core.agent.processes import die_with_agent
from ....core.wire.durable import read_sealed, sync_file_system, write_sealed
from ....core.wire.files import newest_in
from ....core.wire.frames import Frame
from ....core.wire.os_errors import explain
from ....core.wire.private_folders import identity_of_folder, make_private

ENVS = "envs"
"""Their folder in ~/.muster."""
RECORD = "muster.json"
KEY = re.compile(r"[0-9a-f]{20}")
MOST = 1024
FRESH_SECONDS = 3600.0


def folders_in(root: Path) -> list[Path]:
    """The folders of all environments, also of those that are not complete."""
    return sorted(path for path in root.glob("*") if KEY.fullmatch(path.name))


def record(folder: Path) -> dict[str, Any] | None:
    """The record of an environment; None if it is not complete, or its Python is gone."""
    try:
        kept: dict[str, Any] = read_sealed(folder / RECORD)
        os.stat(kept["executable"])  # follows the link to the Python that it was made with
        return {**kept, "used": os.stat(folder).st_mtime}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def complete_in(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The newest of the complete environments, with their records."""
    for folder in sorted(folders_in(root), key=lambda path: path.stat().st_mtime, reverse=True)[:MOST]:
        if kept := record(folder):
            yield folder.name, kept


def lock(root: Path, key: str, kind: int) -> int:
    """Take the lock of an environment; OSError if `kind` has LOCK_NB and another process holds it."""
    descriptor = os.open(root / f"{key}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def hold(muster_root: Path, key: str) -> int:
    """Note that a job uses an environment; returns the descriptor that holds its lock."""
    root = muster_root / ENVS
    descriptor = lock(root, key, fcntl.LOCK_SH)
    if record(root / key) is None:
        os.close(descriptor)
        raise FileNotFoundError(f"the environment {key} was removed in between; launch again")
    os.utime(root / key)
    return descriptor


def remove(root: Path, key: str) -> int | None:
    """Remove an environment; returns its bytes, or None if it is in use or missing."""
    folder = root / key
    try:
        held = lock(root, key, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    try:
        if not folder.is_dir():
            return None
        size = size_of(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / RECORD).unlink()  # from here on it is not valid
        shutil.rmtree(folder)
        return size
    finally:
        os.close(held)


def remove_wheels(muster_root: Path) -> int:
    """Remove the cache and the wheels of environments, unless a launch may be bringing some just now."""
    freed = 0
    for folder in (muster_root / ENVS / "cache", muster_root / "wheels"):
        if newest_in(folder) <= time.time() - FRESH_SECONDS:
            freed += size_of(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return freed


def size_of(folder: Path) -> int:
    """The bytes of the files below a folder; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for inner, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(inner, name))
                seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())


SECONDS = 5.0  # for all addresses: the driver waits 15 s (features/packages/bring.py)


def refusal(urls: list[str]) -> str:
    """Why one of the addresses does not answer; empty if all do. A name server may take long to answer."""
    reasons = dict.fromkeys(urls, f"no answer within {SECONDS:.0f} s")

    def attempt(url: str) -> None:
        # http or https: features/packages/bring.py takes no others.
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310
                reasons[url] = ""
        except (OSError, ValueError, http.client.HTTPException) as error:
            reasons[url] = str(error)

    threads = [threading.Thread(target=attempt, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return next((f"{url}: {reason}" for url, reason in reasons.items() if reason), "")


CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
LINES = 15  # of a failed program's output in the error
# The properties of the environment that a launch needs, by its own Python.
_FACTS = """
import glob, json, platform, sysconfig
from importlib.metadata import PackageNotFoundError, version
def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({
    "python": platform.python_version(), "torch": installed("torch"), "mpi4py": installed("mpi4py"),
    "packages": len(glob.glob(sysconfig.get_path("purelib") + "/*.dist-info")),
}))
"""


class BuildError(OSError):
    """The reason why an environment cannot be made."""


def make_in_thread(muster_root: Path, request: Frame, text: str, send: Callable[[Frame], None]) -> None:
    """Make an environment, and report its end: the environment's record, or an error."""

    def work() -> None:
        began = time.monotonic()
        made, reason = None, ""
        try:
            made = make(muster_root, request, text)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = explain(error)
        seconds = time.monotonic() - began
        send({"event": "env-made", "environment": made, "error": reason, "seconds": seconds})

    threading.Thread(target=work, daemon=True).start()


def make(muster_root: Path, request: Frame, text: str) -> dict[str, Any]:
    """Make an environment if it is missing; returns its record. Waits for a launch that makes the same."""
    root, key = muster_root / ENVS, request["key"]
    make_private(muster_root, root)
    held = lock(root, key, fcntl.LOCK_EX)
    try:
        folder = root / key
        if existing := record(folder):
            return existing
        shutil.rmtree(folder, ignore_errors=True)  # a half-made one
        try:
            _build(muster_root / "wheels", root, folder, request, text)
            facts = {**_facts_of(folder), "source": request["source"], "bytes": size_of(folder)}
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync_file_system(folder)  # the record stands for all files of the environment
        write_sealed(folder / RECORD, facts)
        made = record(folder)
        if made is None:
            raise BuildError("its Python was removed while it was made; launch again")
        return made
    finally:
        os.close(held)


def _build(wheels: Path, root: Path, folder: Path, request: Frame, text: str) -> None:
    uv = [str(_uv(wheels, request["uv"])), "--no-config", "--no-progress", "--color", "never"]
    uv += ["--cache-dir", str(root / "cache")]
    if not request["index"]:
        uv.append("--offline")
    python = request["python"] or sys.executable
    _run([*uv, "venv", "--quiet", "--no-project", "--python", python, str(folder)], root)
    if request["system"]:
        _add_packages_of_host(folder)
    with tempfile.TemporaryDirectory(dir=str(root)) as temporary:
        listed = Path(temporary, "pylock.toml" if request["index"] else "requirements.txt")
        listed.write_text(text)
        argv = [*uv, "pip", "install", "--python", str(folder / "bin" / "python"), "--no-deps", "--no-build"]
        if not request["index"]:
            argv.append("--no-index")
            for digest, name in request["wheels"]:
                argv += ["--find-links", str(_named(wheels, digest, name))]
        if text.strip():
            _run([*argv, "--requirements", str(listed)], root)
            _compile(folder)


def _compile(folder: Path) -> None:
    """Compile the packages once; otherwise the ranks of the first launch do, all at the same time."""
    compiling = [str(folder / "bin" / "python"), "-I", "-m", "compileall", "-q", "-j", "0"]
    with contextlib.suppress(BuildError):  # a package may hold files for another version of Python
        _run([*compiling, str(folder / "lib")], folder)


def _uv(wheels: Path, digest: str) -> Path:
    """The uv program of the driver, made executable."""
    path = wheels / digest
    path.chmod(stat.S_IRWXU)
    return path


def _named(wheels: Path, digest: str, name: str) -> Path:
    """A folder with one wheel under its own name; always the same, so that uv unpacks a wheel once."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest) or not re.fullmatch(r"[\w.+!-]{1,255}\.whl", name):
        raise ValueError(f"not a wheel: {name}")
    folder = wheels / "named" / digest
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / name).symlink_to(wheels / digest)
    return folder


def _add_packages_of_host(folder: Path) -> None:
    """Let the environment import the packages of the host's own Python too, after its own."""
    paths = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    for site in folder.glob("lib/python*/site-packages"):
        (site / "muster-host.pth").write_text("".join(f"{path}\n" for path in paths))


def _facts_of(folder: Path) -> dict[str, Any]:
    python = folder / "bin" / "python"
    versions: dict[str, Any] = json.loads(_run([str(python), "-I", "-c", _FACTS], folder))
    mpirun = folder / "bin" / "mpirun"
    version, error = mpirun_version(str(mpirun)) if mpirun.exists() else (None, None)
    if error:
        raise BuildError(f"{mpirun} --version fails: {error}")
    return {
        **versions,
        "executable": str(python),
        "mpirun": str(mpirun) if mpirun.exists() else None,
        "mpi": version,
    }


def _run(argv: list[str], folder: Path) -> str:
    """The output of a program; `BuildError` with its last lines if it failed. It ends with this agent."""
    environment = dict(_environment())
    try:
        done = subprocess.run(
            argv,
            cwd=str(folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            preexec_fn=die_with_agent,  # the child only calls prctl
        )
    except OSError as error:
        if error.errno == 8:  # ENOEXEC
            raise BuildError("uv of the driver's machine is for another processor than this host's") from None
        raise BuildError(f"{argv[0]}: {explain(error)}") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        lines = text.splitlines()[-LINES:]
        raise BuildError("\n".join(lines) or f"{argv[0]} ended with status {done.returncode}")
    return done.stdout.decode(errors="replace")


def _environment() -> Iterator[tuple[str, str]]:
    """The environment of uv: without another environment's settings, with the host's certificates."""
    for name, value in os.environ.items():
        if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_")):
            yield name, value
    if os.path.exists(CERTIFICATES):  # they may include a site's own; uv itself brings only public ones
        yield "UV_SYSTEM_CERTS", "1"
    yield "UV_PYTHON_INSTALL_DIR", os.path.expanduser(f"~/.muster/{ENVS}/pythons")


_DRIVERS = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")


class Environments:
    """Answers requests about environments."""

    def __init__(self, muster_root: Path, send: Callable[[Frame], None]) -> None:
        self._muster_root, self._send = muster_root, send
        self._root = muster_root / ENVS
        self._held = set[str]()

    def do_envs(self, request: Frame, payload: bytes) -> Frame:
        """The environments that are complete, and the facts that decide which wheels run here."""
        make_private(self._muster_root, self._root)
        return {
            "home": identity_of_folder(self._root / "home"),
            "machine": platform.machine(),
            "glibc": glibc_version(),
            "driver": _driver(),
            "environments": dict(complete_in(self._root)),
        }

    def do_env_reach(self, request: Frame, payload: bytes) -> Frame:
        """Why one of these addresses does not answer here; empty if all do."""
        return {"refusal": refusal(request["urls"])}

    def do_env_make(self, request: Frame, payload: bytes) -> Frame:
        """Make an environment; the end is an event, because that may take minutes."""
        make_in_thread(self._muster_root, request, payload.decode(), self._send)
        return {}

    def do_env_hold(self, request: Frame, payload: bytes) -> Frame:
        """Keep an environment that ranks use from being removed, as long as this process lives."""
        if request["key"] not in self._held:
            hold(self._muster_root, request["key"])
            self._held.add(request["key"])
        return {}

    def do_env_remove(self, request: Frame, payload: bytes) -> Frame:
        """Remove environments that no job uses: those with these keys, or all."""
        asked, there = request["keys"], [path.name for path in folders_in(self._root)]
        sizes = {key: remove(self._root, key) for key in there if not asked or key in asked}
        removed = {key: size for key, size in sizes.items() if size is not None}
        kept = [key for key in sizes if key not in removed and (self._root / key).is_dir()]
        freed = sum(removed.values()) + (0 if folders_in(self._root) else remove_wheels(self._muster_root))
        return {"removed": list(removed), "kept": kept, "freed": freed}


def _driver() -> str:
    for path in _DRIVERS:
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            if match := re.search(r"\b\d{3,4}\.\d+(\.\d+)?", file.read(4096)):
                return match.group()
    return ""
