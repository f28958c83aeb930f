"""A registry of images: Debian's docker-registry in a container, with its own certificate and password."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bcrypt

from tests.waiting import wait_until

IMAGE = "muster-test-registry"
BUILD = """
FROM debian:trixie-slim
RUN apt-get update && apt-get install --yes --no-install-recommends docker-registry
"""
SETTINGS = """
version: 0.1
log: {accesslog: {disabled: false}}
storage: {filesystem: {rootdirectory: /tmp/images}}
http: {addr: ":5000", tls: {certificate: /etc/registry.crt, key: /etc/registry.key}}
auth: {htpasswd: {realm: images, path: /etc/registry.users}}
"""
NAME = "registry.test:5000"  # for hosts of the network that it joins
USER = "someone"


def docker(*words: str, stdin: str = "") -> str:
    done = subprocess.run(
        ("docker", *words), input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass(frozen=True)
class Registry:
    """A registry that runs. `here` is its address for this machine's engine, `NAME` that for hosts."""

    container: str
    folder: Path
    password: str
    here: str

    @property
    def certificate(self) -> str:
        return (self.folder / "registry.crt").read_text()

    def settings(self, name: str) -> str:
        """What `docker login` writes for a name of this registry."""
        known = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        return json.dumps({"auths": {name: {"auth": known}}})

    def log_in(self, settings: Path) -> None:
        """Log in as `docker login` does, with the settings in a folder."""
        words = ("--config", str(settings), "login", "--username", USER, "--password-stdin", self.here)
        docker(*words, stdin=self.password)

    def push(self, image: str, name: str) -> str:
        """Give the registry an image; returns the name by which this machine's engine can pull it."""
        full = f"{self.here}/{name}"
        self.log_in(self.folder / "docker")
        docker("tag", image, full)
        docker("--config", str(self.folder / "docker"), "push", "--quiet", full)
        docker("image", "rm", full)
        return full

    def requests(self) -> list[str]:
        """What was asked of it, by method and path, and the status of each answer."""
        done = subprocess.run(
            ("docker", "logs", self.container), capture_output=True, text=True, timeout=60, check=True
        )
        lines = [line.partition('"')[2] for line in (done.stdout + done.stderr).splitlines() if ' "' in line]
        return [line for line in lines if line.startswith(("GET ", "HEAD "))]

    def _answers(self) -> bool:
        asked = ("curl", "--silent", "--insecure", "--output", "/dev/null", f"https://{self.here}/v2/")
        return not subprocess.run(asked, check=False, timeout=60).returncode


@contextlib.contextmanager
def running(folder: Path, network: str = "") -> Iterator[Registry]:
    """Run a registry, which hosts of `network` reach as `NAME`, and this machine over loopback.

    Engines take any certificate at an address of loopback, and check it elsewhere.
    """
    password = secrets.token_hex(16)
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4, b"2a")).decode()
    (folder / "registry.users").write_text(f"{USER}:{hashed}\n")
    (folder / "registry.yml").write_text(SETTINGS)
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    about = ("-days", "2", "-subj", "/CN=images", "-addext", f"subjectAltName=DNS:{NAME.partition(':')[0]}")
    files = ("-keyout", str(folder / "registry.key"), "-out", str(folder / "registry.crt"))
    subprocess.run((*made, *about, *files), check=True, capture_output=True, timeout=60)
    docker("build", "--quiet", "--tag", IMAGE, "-", stdin=BUILD)
    command = ("docker-registry", "serve", "/etc/registry.yml")
    container = docker("create", "--publish", "127.0.0.1::5000", IMAGE, *command)
    try:
        for file in folder.glob("registry.*"):
            docker("cp", str(file), f"{container}:/etc/{file.name}")
        if network:
            docker("network", "connect", "--alias", NAME.partition(":")[0], network, container)
        docker("start", container)
        registry = Registry(container, folder, password, docker("port", container, "5000/tcp"))
        wait_until(registry._answers, "the registry's first answer")
        yield registry
    finally:
        docker("rm", "--force", "--volumes", container)
