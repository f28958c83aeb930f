"""Describes the image of a launch on this host, its contents, and how the engine starts a container."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import re
import resource
import threading
from pathlib import Path

from ....core.wire.durable import read_sealed, write_sealed
from ....core.wire.frames import Frame
from ....core.wire.private_folders import identity_of_folder, make_private
from .engines import ContainerEngine, choose, devices, gpus_by


class Containers:
    """Answers the request of `launch --image`, before the plan is made."""

    def __init__(self, muster_root: Path) -> None:
        self._muster_root, self._records = muster_root, muster_root / "containers"

    def do_container(self, request: Frame, payload: bytes) -> Frame:
        """The image and its engine. `pull`: fetch it if it is missing. The payload surveys an image."""
        engine, image = choose(request["engine"], request["image"])
        if image is None and request["pull"]:
            engine.pull(request["image"])
            image = engine.image(request["image"])
        make_private(self._muster_root, self._records)
        home = identity_of_folder(self._records / "home")
        threading.Thread(target=_sweep, args=(engine, home), daemon=True).start()
        survey = self._surveyed(engine, image["id"], request["image"], payload.decode()) if image else {}
        return {
            "engine": engine.name,
            "program": engine.program,
            "rootless": survey.get("rootless", False),
            "remapped": survey.get("remapped", False),
            "raises_limits": survey.get("raises_limits", False),
            "id": image["id"] if image else "",
            "digests": image["digests"] if image else [],
            "inside": survey.get("inside"),
            "home": home,
            **_host(),
        }

    def _surveyed(self, engine: ContainerEngine, image: str, reference: str, program: str) -> Frame:
        """The survey of an image. It is made once, because the id fixes the content."""
        about = [*engine, image, program, os.environ.get("DOCKER_HOST", ""), os.getuid()]
        record = self._records / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]}.json"
        kept = read_sealed(record)
        if isinstance(kept, dict):
            return kept
        location = reference if engine.name == "apptainer" else image
        nature = {**engine.nature(), "raises_limits": engine.raises_limits(location)}
        survey = {**nature, "inside": _inside(engine.survey(location, program))}
        write_sealed(record, survey)
        return survey


def _inside(survey: Frame) -> Frame:
    """The survey, with the version in the answer of mpirun."""
    answer = survey.pop("answer")
    version, failed = None, None
    if answer:
        status, text = answer
        if match := re.search(r"\(Open MPI\) (\d+\.\d+\.\d+)", text):
            version = match.group(1)
        elif status:
            failed = f"it ended with {status}: {text.strip().splitlines()[-1][-200:] if text.strip() else ''}"
    return {**survey, "mpi": version, "mpi_error": failed}


def _host() -> Frame:
    """The properties of this host and user that a container needs."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"user{os.getuid()}"
    return {
        "user": user,
        "gid": os.getgid(),
        "groups": sorted({*os.getgroups()} - {os.getgid()}),
        "open_files": files,
        "gpus": gpus_by(),
        "devices": devices(),
    }


def _sweep(engine: ContainerEngine, home: str) -> None:
    with contextlib.suppress(OSError):
        engine.sweep(home)
