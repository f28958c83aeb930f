"""Prints what an image is made of, as a software bill of materials: CycloneDX 1.6, JSON.

Run in the image, at the end of its build. Debian's packages as dpkg has them, Python's as their own metadata
has them, and what was compiled from sources of its own, as build arguments name it (UCX_VERSION and so on).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

PREFIX = "/usr/local/"  # of what is compiled, rather than of the distribution
COMPILED = {"ucx": "lib/libucp.so", "openmpi": "lib/libmpi.so"}  # no Python package: a file below PREFIX
FORMAT = "${binary:Package}\t${Version}\t${Architecture}\t${source:Package}\n"
Component = dict[str, Any]


def component(name: str, version: str, purl: str, **more: str) -> Component:
    """Describe a package; `purl` is its package URL, which is unique."""
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def release() -> dict[str, str]:
    """Return the fields of /etc/os-release."""
    return dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))


def of_distribution(system: str, version: str) -> Iterator[Component]:
    """Describe every package that dpkg has installed."""
    argv = ("dpkg-query", "--show", "--showformat", FORMAT)
    listed = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name, its_version, machine, source in (line.split("\t") for line in listed.splitlines()):
        plain = name.partition(":")[0]
        words = f"arch={machine}&distro={system}-{version}&upstream={quote(source)}"
        yield component(plain, its_version, f"pkg:deb/{system}/{plain}@{quote(its_version)}?{words}")


def of_python() -> Iterator[Component]:
    """Describe the Python packages that no package of the distribution has brought."""
    seen = set()
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        if str(one.locate_file("")).startswith(PREFIX) and name not in seen:
            seen.add(name)
            yield component(name, one.version, f"pkg:pypi/{name}@{one.version}")


def of_sources() -> Iterator[Component]:
    """Describe what was compiled here and is no Python package."""
    for name, file in COMPILED.items():
        version = os.environ.get(f"{name.upper()}_VERSION", "")
        if version and Path(PREFIX, file).exists():
            yield component(name, version, f"pkg:generic/{name}@{version}")


def bill() -> dict[str, Any]:
    """Return the whole bill of materials."""
    system = release()
    name, version = system["ID"], system.get("VERSION_ID", "")
    parts = [*of_distribution(name, version), *of_python(), *of_sources()]
    image = {
        "type": "container",
        "bom-ref": "image",
        "name": "muster",
        "version": os.environ.get("FLAVOR", ""),
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": [
            {"type": "operating-system", "bom-ref": "os", "name": name, "version": version},
            *sorted(parts, key=lambda part: part["purl"]),
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    print()
