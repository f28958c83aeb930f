"""A `docker` whose containers are processes of this machine: for tests of what happens around an engine.

Its image is `me/it:1`, with the Python of the tests. `absent` is no image here and can be pulled, `gone` and
`private` cannot, and `broken` does not start. Each command is a line of the file FAKE_DOCKER; FAKE_PATH is
the image's PATH, and FAKE_LEFT what `docker ps` prints.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

IDS = {"me/it:1": "ab" * 32, "broken": "cd" * 32, "absent": "ef" * 32}


def main(words: list[str]) -> None:
    """Do what a command line says, as far as an agent needs it."""
    log = Path(os.environ["FAKE_DOCKER"])
    pulled = log.exists() and "pull" in log.read_text()
    with log.open("a") as file:
        file.write(" ".join(words) + "\n")
    if words[:2] == ["image", "inspect"]:
        name = words[-1]
        if name not in IDS or (name == "absent" and not pulled):
            sys.exit(f"Error: No such image: {name}")
        sys.stdout.write(f"sha256:{IDS[name]} {name}@sha256:{'12' * 32} \n")
    elif words[0] == "pull" and words[-1] == "gone":
        sys.exit("Error response from daemon: manifest for gone:latest not found: manifest unknown")
    elif words[0] == "pull" and words[-1] == "private":
        sys.exit('Error response from daemon: Head "https://r/v2/private": no basic auth credentials')
    elif words[0] == "info":
        sys.stdout.write('["name=seccomp,profile=default"]\n')
    elif words[0] == "ps":
        sys.stdout.write(os.environ.get("FAKE_LEFT", ""))
    elif words[0] == "run":
        run(words)


def run(words: list[str]) -> None:
    """Run the entry point with the image's environment and what `--env` gives."""
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    given = dict(setting.split("=", 1) for setting in settings)
    path = os.environ.get("FAKE_PATH", str(Path(sys.executable).parent) + os.pathsep + os.defpath)
    environment = {"PATH": path, "HOME": "/", "OF_THE_IMAGE": "yes", **given}
    entry = words.index("--entrypoint") + 1
    image = next(at for at, word in enumerate(words) if word in IDS.values())
    if words[image] == IDS["broken"] and "-IS" in words:
        sys.exit("docker: Error response from daemon: failed to create task: no such device.")
    sys.exit(subprocess.run([words[entry], *words[image + 1 :]], env=environment, check=False).returncode)


def install(folder: Path) -> dict[str, str]:
    """Put it into a folder as `docker`; returns the variables with which it is found, and works."""
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o700)
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    return {"PATH": path, "FAKE_DOCKER": str(folder / "log")}


if __name__ == "__main__":
    main(sys.argv[1:])
