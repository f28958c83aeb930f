"""Chooses wheels from a local folder for hosts that reach no index.

`python3 -` reads this text on this machine, with a call of main appended. uv chooses as it would on the host,
so a missing wheel is known before anything is changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TLS = "behind a proxy that inspects TLS name the file of its authority: export SSL_CERT_FILE=FILE"
OLDEST, NEWEST = 5, 28  # manylinux_2_N: wheels for this C library and older ones


def said(argv: list[str], environment: dict[str, str], stdin: str = "") -> str:
    """Return what a program printed; raises ValueError with its message, masked, if it failed."""
    done = subprocess.run(
        argv, input=stdin, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        message = masked(" ".join(done.stderr.split()))
        raise ValueError(message + (f"; {TLS}" if "certificate" in message.lower() else ""))
    return done.stdout


def masked(message: str) -> str:
    """Hide the users and passwords of URLs."""
    return re.sub(r"(?<=://)[^/?#\s]+@", "***@", message)


def asking(index: str, name: str) -> dict[str, str]:
    """Return the variable that names an index: not an option, as everyone may read a command line."""
    return {name: index} if index else {}


def resolve(asked: dict[str, Any], index: str, *more: str) -> list[str]:
    """Return `name==version` of each package that uv would install on the host."""
    argv = [asked["uv"], "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"]
    argv += ["--find-links", asked["folder"], "--only-binary", ":all:", "--constraint", asked["constraints"]]
    argv += ["--python-version", asked["python_version"], "--python-platform", asked["platform"], *more]
    return said(argv, asking(index, "UV_DEFAULT_INDEX"), "\n".join(asked["packages"])).split()


def choose(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the files of the folder that a host needs, and the problem if some are missing."""
    try:
        pins = resolve(asked, "", "--no-index", "--no-cache", "--no-config")
    except (OSError, ValueError) as error:
        return {"wheels": [], "problem": str(error)}
    files = wheels(Path(asked["folder"]), pins, asked["python_version"], asked["architecture"])
    return {"wheels": files, "problem": ""}


def wheels(folder: Path, pins: list[str], python_version: str, architecture: str) -> list[str]:
    """Return the wheels of these packages for this Python and machine, sorted by name."""
    wanted = {(normal(name), version) for name, _, version in (pin.partition("==") for pin in pins)}
    tag = "cp" + python_version.replace(".", "")
    files = []
    for path in sorted(folder.glob("*.whl")):
        name, version, *_, python, abi, platform = path.stem.split("-")
        fits = tag in python.split(".") or "py3" in python.split(".") or "abi3" in abi
        runs = "any" in platform.split(".") or architecture in platform
        if (normal(name), version) in wanted and fits and runs:
            files.append(str(path))
    return files


def normal(name: str) -> str:
    """Normalise a package's name as indexes do (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def fill(asked: dict[str, Any]) -> dict[str, Any]:
    """Download what a host needs. uv resolves, as pip would apply its own Python's markers; pip downloads."""
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    download(asked, [asked["torch"]], asked["torch_index"] or asked["index"])
    pins = resolve({**asked, "packages": [asked["torch"], *asked["packages"]]}, asked["index"])
    download(asked, pins, asked["index"])
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
        said(argv, asking(index, "PIP_INDEX_URL"))


def main(question: str) -> int:
    """Do what `question` asks, and print the answer as JSON; on failure print the reason to stderr."""
    asked = json.loads(question)
    try:
        print(json.dumps({"choose": choose, "fill": fill}[asked["do"]](asked)))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
