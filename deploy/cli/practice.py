"""`muster demo` and `muster cluster`: a first run for users who have no hosts yet."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ..connect.opener import access_beside
from ..console.screen import Screen
from ..errors import UnfitError, UsageError
from ..hosts import hostfile
from ..hosts.hostfile import MAX_SLOTS
from ..image.engine import Engine
from ..jobs.hosts_record import HostsRecord
from ..jobs.job import Job
from ..plan.launcher import LauncherName
from ..plan.source_tree import Tree, of_package
from ..plan.spec import LaunchSpec, Program
from ..timings import Timings
from . import options
from .carrying import carry_out
from .command import Exit, Values, command
from .shared import NEW_RUN, explained
from .shipped import COMPOSE, TRAIN

LOCAL: tuple[LauncherName, ...] = ("mpirun", "torchrun")
"""The launchers that start ranks on this machine."""
NODES = ("node1", "node2", "node3")
COMPOSED = ("cpu", "cpu-source")
"""The targets that compose.yaml builds; others need more arguments than it gives."""
KEYS = ("id_ed25519", "id_ed25519.pub", "known_hosts", "ssh_config")
"""What docker/make-keys.sh writes. `down` removes ssh_config last, because it identifies the practice
cluster's keys."""
SETUPS = ("hosts.json", "id_ed25519.next", "ssh_config.next")
"""Files beside the keys that only setup and rotate-keys write."""
_CONFIG_OF_PRACTICE = re.compile(
    r"Host \S+\n {4}HostName 127\.0\.0\.1\n {4}Port \d+\n {4}User muster\n {4}IdentityFile "
)
"""How the ssh_config of docker/make-keys.sh begins."""
_OWN_FOLDER = "a folder of its own: mkdir practice && cd practice"


@command(
    help={
        "launcher": "mpirun (default) or torchrun",
        "np": "number of ranks (default: 2)",
        "runs": NEW_RUN,
    },
    values={"np": Values(1, MAX_SLOTS)},
    spellings={"-n": "--np"},
)
def demo(launcher: str = "mpirun", np: int = 2, runs: str = "runs") -> None:
    """Train on this machine alone: two ranks learn to read handwritten digits."""
    with explained(), tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        _require_torch()
        hosts_file, screen = Path(folder, "hosts.txt"), Screen(sys.stdout)
        hosts_file.write_text(f"localhost slots={np}\n")
        spec = LaunchSpec(
            job=options.new_job(),
            program=Program(module=options.DEFAULT_MODULE),
            launcher=options.one_of("--launcher", launcher, LOCAL),
            columns=screen.columns,
        )
        job = Job(
            spec=spec,
            hosts=hostfile.load(hosts_file),
            tree=Tree(Path(folder), ".", ()),  # takes no files from the current folder
            library=of_package(TRAIN),
            start_timeout=60.0,
        )
        access = access_beside(hosts_file, "")
        record = HostsRecord(job.hosts, access)
        carry_out(job, access.open, Path(runs), screen, Timings(), record=record)


def _require_torch() -> None:
    if not find_spec("torch"):
        reason = "no PyTorch beside this Python, to train with; pip install 'muster-cluster[train]'"
        raise UnfitError([("localhost", reason)])


@command(help={"hosts": "the cluster's hosts file, written if there is none (default: hosts.txt)"})
def up(hosts: str = "hosts.txt") -> None:
    """Start a practice cluster: three containers of the node image, reached as real hosts are."""
    with explained():
        if theirs := _of_another_cluster(folder := _keys_folder(Path(hosts))):
            raise UsageError(
                f"{folder} has the SSH files of another cluster ({theirs}), and this command would overwrite "
                f"them; give the practice cluster {_OWN_FOLDER}"
            )
        hosts_file = _practice_hosts(Path(hosts))
        target = os.environ.get("MUSTER_TARGET") or COMPOSED[0]
        image = os.environ.get("MUSTER_IMAGE") or f"muster:{target}"
        first = " (the first time: downloads 0.2 GB, 1 to 5 minutes)" if target == COMPOSED[0] else ""
        _say(f"image {image}{first}")
        if image in {f"muster:{name}" for name in COMPOSED}:
            _compose(hosts_file, "build")
        else:
            Engine().image(
                image
            )  # refuses an image that is not here: compose would build another of its name
        _say(f"{', '.join(NODES)}: keys, host keys, sshd")
        _compose(hosts_file, "up", "--detach", "--wait")
        sys.stdout.write(f"next:\n    muster launch --hosts {shlex.quote(hosts)}\n    muster cluster down\n")


@command(help={"hosts": "the cluster's hosts file (default: hosts.txt)"})
def down(hosts: str = "hosts.txt") -> None:
    """Remove the practice cluster and its keys; the hosts file stays."""
    with explained():
        if theirs := _of_another_cluster(folder := _keys_folder(Path(hosts))):
            raise UsageError(
                f"{folder} has the SSH files of another cluster ({theirs}), and this command would remove "
                f"them; run it where you ran muster cluster up, or in {_OWN_FOLDER}"
            )
        _compose(Path(hosts), "down", "--volumes")
        for name in KEYS:
            (folder / name).unlink(missing_ok=True)


def _practice_hosts(path: Path) -> Path:
    """The hosts file of the practice cluster. A file with other hosts is refused, and never changed."""
    if not path.exists():
        path.write_text("".join(f"{node} slots=2\n" for node in NODES))
    elif others := {host.name for host in hostfile.load(path)} - {*NODES}:
        raise UsageError(
            f"{path}: {min(others)} is no node of the practice cluster ({', '.join(NODES)}); "
            f"give the practice cluster {_OWN_FOLDER}"
        )
    return path


def _keys_folder(hosts_file: Path) -> Path:
    """`.muster` beside the hosts file, where a launch looks for ssh_config and the keys."""
    return Path(os.environ.get("MUSTER_DIR") or hosts_file.resolve().parent / ".muster")


def _of_another_cluster(folder: Path) -> str:
    """The name of a file there that is not the practice cluster's; empty if there is none.

    Setup gives key and configuration the same names. A key alone may be of a setup that was interrupted.
    """
    config = folder / "ssh_config"
    ours = config.is_file() and _CONFIG_OF_PRACTICE.match(config.read_text(errors="replace"))
    names = SETUPS if ours else (*KEYS, *SETUPS)
    return next((name for name in names if os.path.lexists(folder / name)), "")


def _compose(hosts_file: Path, *words: str) -> None:
    """Run docker compose on the cluster's compose file, whose folder is the build context."""
    folder = _keys_folder(hosts_file)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (ignored := folder / ".gitignore").exists():
        ignored.write_text("# Keys: none of it belongs in git.\n*\n")
    argv = ["docker", "compose", "--file", str(COMPOSE), *words]
    try:
        done = subprocess.run(argv, env={**os.environ, "MUSTER_DIR": str(folder)}, check=False)
    except FileNotFoundError:
        raise UsageError("no docker here; the practice cluster needs Docker with compose") from None
    if done.returncode:
        raise Exit(f"docker compose {' '.join(words)} failed (exit status {done.returncode})", 1)


def _say(text: str) -> None:
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()
