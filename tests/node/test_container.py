"""The container of a job on a host, with an engine whose containers are processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from muster.deploy.core.connect.channel import Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.reports import CommandEnd, LauncherLine
from muster.deploy.core.connect.requests import PREPARE, START
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError, UnfitError
from muster.deploy.core.job.events import Event, Waiting
from muster.deploy.core.job.feature import Start
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.core.timings import Timings
from muster.deploy.features.containers import driver as containers
from muster.deploy.features.containers.driver import CONTAINER, CONTAINER_START, HostImage
from muster.deploy.features.containers.on_host.engines import last_line
from muster.deploy.features.containers.on_host.look import Containers
from muster.deploy.features.containers.options import ContainerOptions
from tests import fake_docker
from tests.ending import end
from tests.hosts_here import HostsHere
from tests.processes import is_alive, wait_until_gone
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # several processes a test

Kind = TypeVar("Kind")
SURVEY = (containers.ON_HOST / "survey.py").read_bytes()
PYTHON = sys.executable
# Leaves its session and parent, and ignores SIGTERM: only a keeper that adopts it can find it.
DAEMON = (
    "import os,signal,sys,time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): sys.exit()\n"
    "os.setsid()\n"
    "if os.fork(): sys.exit()\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The engine's record of its commands."""
    for name, value in fake_docker.install(tmp_path / "engine").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "engine" / "log"


def asked(engine: Path) -> list[str]:
    """The first word of each command that the engine got; sweeps come when they come."""
    words = [line.split()[0] for line in engine.read_text().splitlines()]
    return [word for word in words if word != "ps"]


def look(home: Path, image: str = "me/it:1", *, engine: str = "", pull: bool = False) -> HostImage:
    answer = Containers(home).do_container({"image": image, "engine": engine, "pull": pull}, SURVEY)
    return CONTAINER.read(json.loads(json.dumps(answer)))


# -- a host's description of an image --


def test_an_image_is_looked_into_once(engine: Path, tmp_path: Path) -> None:
    there = look(tmp_path / "home")
    assert (there.engine, there.id, there.digests) == ("docker", "ab" * 32, ("12" * 32,))
    assert there.inside
    assert Path(there.inside.executable).resolve() == Path(PYTHON).resolve()
    assert there.inside.python == ".".join(map(str, sys.version_info[:3]))
    assert "root:" in there.inside.passwd
    assert look(tmp_path / "home") == there
    assert asked(engine) == ["image", "info", "run", "run", "image"]


def test_an_image_that_a_host_lacks_is_fetched_only_when_that_is_asked(engine: Path, tmp_path: Path) -> None:
    lacking = look(tmp_path / "home", "absent")
    assert (lacking.id, lacking.inside) == ("", None)
    assert look(tmp_path / "home", "absent", pull=True).id == "ef" * 32
    assert asked(engine) == ["image", "image", "pull", "image", "info", "run", "run"]


def test_a_host_without_an_engine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="no docker or podman on PATH; install one of them on the host"):
        look(tmp_path / "home")
    with pytest.raises(OSError, match="no podman on PATH"):
        look(tmp_path / "home", engine="podman")


def test_an_engine_that_does_not_answer_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'permission denied while trying to connect' >&2\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    with pytest.raises(OSError, match="docker image: permission denied while trying to connect"):
        look(tmp_path / "home", engine="docker")


def test_an_image_needs_python(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PATH", "/nowhere")
    with pytest.raises(OSError, match=r"there is no python3 or python on its PATH \(/nowhere\)"):
        look(tmp_path / "home")


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("docker: Error response from daemon: no such device.\nSee 'docker run --help'.", "no such device."),
        (
            "docker: Error response from daemon: error setting rlimit type 8\n"
            'time="2026-11-26T02:44:55Z" level=error msg="error waiting for container: context canceled"',
            "error setting rlimit type 8",
        ),
        (
            'time="2026-11-26T02:44:55Z" level=error msg="no space left on device"\n',
            'no space left on device"',
        ),
    ],
)
def test_the_engines_own_error_is_the_reason_whatever_docker_logs_after_it(printed: str, reason: str) -> None:
    assert last_line(printed).endswith(reason)


def test_containers_of_ended_jobs_are_removed(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Host(tmp_path / "jobs" / "held")
    (tmp_path / "jobs" / "left").mkdir()
    monkeypatch.setenv("FAKE_LEFT", f"aaa {tmp_path}/jobs/left\nbbb {tmp_path}/jobs/held\n")
    look(tmp_path / "home")
    removed = wait_until(
        lambda: [line for line in engine.read_text().splitlines() if line.startswith("rm ")], "a removal"
    )
    held.channel.close()
    assert removed == ["rm --force aaa"]


# -- what the driver makes of it --


def images(tmp_path: Path, image: str, *, pull: bool = True) -> list[str]:
    said: list[str] = []
    spec = LaunchSpec(job="x", program=Program()).having(ContainerOptions(image))

    def emit(event: Event) -> None:
        if isinstance(event, Waiting):
            said.append(event.why)

    with HostsHere(tmp_path / "hosts", 2).cluster() as cluster:
        placement = place_ranks(cluster.hosts, spec)
        containers.Containers(spec).prepare(
            Start(spec, placement, emit, Timings(), is_dry_run=not pull), cluster
        )
    return said


def test_hosts_that_lack_the_image_fetch_it_and_are_named(engine: Path, tmp_path: Path) -> None:
    said = images(tmp_path, "absent")
    assert said == ["node1, node2: fetching absent"]


def test_an_image_that_cannot_be_fetched_is_quoted_with_what_brings_it(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(UnfitError) as caught:
        images(tmp_path, "gone")
    why = "manifest for gone:latest not found: manifest unknown"
    assert why in caught.value.reasons[1][1]
    assert str(caught.value).startswith("node[1-2]: ")
    assert str(caught.value).endswith("unknown; bring it from here: muster image.push --image gone")


def test_a_registry_that_wants_a_login_is_named(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(UnfitError) as caught:
        images(tmp_path, "private")
    hint = "no basic auth credentials; log in to its registry there (docker login), or bring it from here: "
    assert str(caught.value).startswith("node[1-2]: ") and hint in str(caught.value)


def test_a_dry_run_fetches_nothing(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match=r"node\[1-2\]: docker has no image absent; a launch lets the"):
        images(tmp_path, "absent", pull=False)
    assert "pull" not in asked(engine)


# -- the container --


class Host:
    """An agent on this machine, prepared for a job in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.events, self.folder = Inbox(), folder
        self.pipe = LocalPipe(None)
        self.channel = Channel("here", self.pipe, self.events)
        self.prepare()

    def prepare(self) -> None:
        """Prepare an attempt of the job."""
        folder, texts = self.folder, containers.programs()
        self.channel.ask(
            PREPARE,
            host="here",
            folder=str(folder),
            cwd=str(folder),
            path=["/first"],
            env={"OF_THE_JOB": "a b"},
            grace=60.0,
            code=[],
            library=[],
            files=[[f"{folder}/bin/{name}", 0o600, text] for name, text in texts.items()],
        )

    def begin(self, image: str = "ab" * 32, *, inside: bool = True) -> None:
        entry = ("--entrypoint", PYTHON, image, "-IS", f"{self.folder}/bin/keeper.py")
        self.channel.ask(
            CONTAINER_START,
            argv=["docker", "run", "--env", "MUSTER_AGENT=$MUSTER_AGENT", *entry],
            remove=["docker", "rm", "--force", "x"],
            launcher_inside=inside,
            environment={"HOME": "/its/home"},
        )

    def start(self, *argv: str) -> tuple[int, str]:
        """Run a command to its end; returns its status and what it printed."""
        self.channel.ask(START, argv=argv)
        code, text = None, ""
        while code is None or not text.endswith("\n"):
            report = self.events.get(timeout=60).report
            text += report.text if isinstance(report, LauncherLine) else ""
            code = report.code if isinstance(report, CommandEnd) else code
        return code, text

    def start_daemon(self) -> int:
        note = self.folder / "pid"
        self.channel.ask(START, argv=[PYTHON, "-c", DAEMON, str(note)])
        return int(wait_until(lambda: note.exists() and note.read_text(), "the daemon's number"))

    def processes(self) -> list[int]:
        """Every process of the container, by the job's folder in its command line."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid)]


@pytest.fixture
def host(engine: Path, tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path / "jobs" / "job")
    yield one
    one.channel.close()


def test_a_command_inside_has_the_images_environment_with_that_of_the_job(host: Host) -> None:
    host.begin()
    names = ("OF_THE_IMAGE", "OF_THE_JOB", "HOME", "PATH", "TMPDIR", "FAKE_DOCKER")
    program = f"import os; print([os.environ.get(name) for name in {names}], flush=True); os.getppid()"
    code, text = host.start(PYTHON, "-c", program)
    of_image, of_job, home, path, temporary, of_host = eval(text)  # noqa: S307  # what the line above printed
    assert (code, of_image, of_job, home, of_host) == (0, "yes", "a b", "/its/home", None)
    assert path.startswith("/first:")
    assert Path(temporary).name.startswith("muster-")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(7)", 7),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", -9, marks=pytest.mark.soak),
        ("os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_end_of_a_command_inside_is_reported_as_it_was(host: Host, program: str, code: int) -> None:
    host.begin()
    line = f"import os, signal, sys; print('here', flush=True); {program}"
    assert host.start(PYTHON, "-c", line) == (code, "here\n")


def test_a_command_that_is_not_in_the_image_is_named(host: Host) -> None:
    host.begin()
    assert host.start("no-such-program") == (127, "no-such-program: No such file or directory\n")


def test_a_rank_starts_although_its_container_lacks_the_folder_of_mpirun(host: Host) -> None:
    """Mpirun starts every rank in the head's folder, and homes differ."""
    host.begin()
    private = (host.folder / "agent.here").read_text()
    asked = {"argv": ["pwd"], "env": {}, "cwd": "/home/of/the/head"}
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
        keeper.connect(f"{private}/enter")
        socket.send_fds(keeper, [b"\0"], [writing] * 3)
        keeper.sendall(json.dumps(asked).encode() + b"\n")
        assert json.loads(keeper.makefile("rb").readline()) == {"code": 0}
    assert os.read(reading, 99) == b"/\n"
    os.close(reading)
    os.close(writing)


def test_a_launcher_outside_does_not_enter_the_container(host: Host) -> None:
    host.begin(inside=False)
    code, text = host.start(PYTHON, "-c", "import os; print(os.environ.get('OF_THE_IMAGE'))")
    assert (code, text) == (0, "None\n")


def test_a_container_that_does_not_start_is_quoted(host: Host) -> None:
    with pytest.raises(MusterError, match=r"cannot start the container: .*: no such device"):
        host.begin("cd" * 32)


def test_at_the_end_nothing_is_left_not_even_what_ignores_sigterm(host: Host, engine: Path) -> None:
    host.begin()
    daemon = host.start_daemon()
    assert host.processes()
    assert end(host.channel).left == ()
    assert not is_alive(daemon)
    assert host.processes() == []
    assert "rm" not in asked(engine)  # it went on its own


def test_an_agent_has_one_container_after_the_other(host: Host) -> None:
    """So it can hold its leases from one attempt to the next. The second has temporary files of its own."""
    folders = []
    for number in (1, 2):
        host.begin()
        program = f"import os, sys; print(os.environ['TMPDIR'], flush=True); sys.exit({number})"
        code, text = host.start(PYTHON, "-c", program)
        assert code == number
        folders.append(text)
        assert end(host.channel).left == ()
        host.prepare()
    assert folders[0] != folders[1]


@pytest.mark.soak
def test_a_container_whose_keeper_is_frozen_is_removed_by_the_engine(host: Host, engine: Path) -> None:
    host.begin()
    for pid in host.processes():
        os.kill(pid, signal.SIGSTOP)
    end(host.channel)
    assert "rm" in asked(engine)
    for pid in host.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_when_the_agent_dies_everything_in_the_container_ends(host: Host, number: signal.Signals) -> None:
    host.begin()
    daemon = host.start_daemon()
    kept = host.processes()
    os.kill(host.pipe.pid, number)
    wait_until_gone(daemon)
    for pid in kept:
        wait_until_gone(pid)
