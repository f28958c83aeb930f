"""The obstacles to a host's environment: a line for each, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]


def problems(seen: Facts, asked: Facts) -> list[str]:
    """Return the obstacles. `seen`: preflight's facts about the host; `asked`: venv_wanted."""
    first = next((problem for part in (_python, _uv, _packages) for problem in part(seen, asked)), None)
    return [*([first] if first else []), *_host(seen, asked)]


def _python(seen: Facts, asked: Facts) -> Iterator[str]:
    python, version, least = asked["python"], asked["python_version"], asked["pins"]["python"]
    if not version:
        yield (
            f"no Python at {python} (venv_python): {asked['python_said']}; name one that is there, or a version "
            "that uv brings (-e venv_python=3.12)"
        )
    elif _number(version) < _number(least):
        yield (
            f"{python} is Python {version}, and PyTorch {asked['pins']['torch']} needs {least} or newer; name "
            "another Python of the host (-e venv_python=/usr/local/bin/python3.12) or a version that uv "
            "downloads (-e venv_python=3.12), or take the stack node (-e muster_stack=node)"
        )


def _uv(seen: Facts, asked: Facts) -> Iterator[str]:
    uv, machine = asked["uv"], seen["architecture"]
    if not uv or not Path(uv).is_file():
        yield (
            f"no uv on this machine{f' at {uv}' if uv else ''}, which makes the environment; install it beside "
            "Ansible: pip install uv, or name it: -e venv_uv=FILE"
        )
    elif not asked["uv_fits"]:
        yield (
            f"uv of this machine ({asked['machine']}) does not run on it (Linux {machine}); bring one that does: "
            f"pip download --no-deps --only-binary :all: --platform manylinux_2_28_{machine} uv, unpack it, and "
            "name it: -e venv_uv=FILE"
        )


def _packages(seen: Facts, asked: Facts) -> Iterator[str]:
    folder = asked["wheelhouse"]
    if folder and not Path(folder).is_dir():
        yield (
            f"venv_wheelhouse: no folder {folder} on this machine; fill one where an index can be reached: "
            "muster wheelhouse FOLDER"
        )
    elif folder and asked["lacking"]:
        yield (
            f"the wheels in {folder} will not do for Python {asked['python_version']} on {seen['architecture']}: "
            f"{asked['lacking']}; fill it where an index can be reached: muster wheelhouse {folder}"
        )
    elif not folder and asked["planned"].get("rc", 1):
        said = " ".join(str(asked["planned"].get("stderr") or "not asked").split())
        indexes = list(dict.fromkeys(filter(None, [asked["torch_index"], asked["index"] or "PyPI"])))
        names = re.sub(r"(?<=://)[^/?# ]+@", "***@", " and ".join(indexes))
        remedy = (
            "it does not trust the certificate, as behind a proxy that inspects TLS: add the proxy's authority "
            "to its certificates (update-ca-certificates), or name a file on the host: -e "
            '\'{"venv_environment": {"SSL_CERT_FILE": "/etc/ssl/proxy.pem"}}\';'
            if "certificate" in said.lower()
            else "name an index that it reaches (venv_torch_index, venv_index), a proxy (venv_environment),"
        )
        yield (
            f"it cannot have the packages from {names}: {said}; {remedy} or bring the wheels from here: muster "
            "wheelhouse FOLDER, then muster setup -- -e venv_wheelhouse=FOLDER"
        )


def _host(seen: Facts, asked: Facts) -> Iterator[str]:
    home, cards, jobs = seen["venv"], seen["nvidia_cards"], seen["jobs"]
    if home["disk_free_mb"] < int(asked["disk_free_mb"]):
        yield (
            f"the home of {asked['user'] or 'the login'} has {home['disk_free_mb']} MB free; "
            f"{asked['disk_free_mb']} MB are needed (venv_disk_free_mb)"
        )
    if cards and not seen["gpu"] and asked["gpus"] == "auto":
        yield (
            f"it has {cards} NVIDIA GPU(s), and no driver is loaded; install the driver and restart the host, "
            "or leave the GPUs alone (-e venv_gpus=no)"
        )
    if jobs and home["exists"] and not asked["despite_jobs"]:
        yield (
            f"its environment would be replaced, and these jobs run in it: {', '.join(jobs)}; wait for them "
            "(muster status), end them (muster stop JOB), or continue anyway: -e muster_despite_jobs=true"
        )


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_environment_problems": problems}
