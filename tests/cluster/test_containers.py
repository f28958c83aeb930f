"""`launch --image` with a real engine: an image like NVIDIA's, which prints and has another user."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import registry
from tests.cluster.conftest import Cluster
from tests.launching import Launched, Project, make_project, wait_until_clean
from tests.load import hold
from tests.parallel import NUMBER
from tests.registry import docker
from tests.waiting import PATIENCE, read_until, wait_until

soak = pytest.mark.soak
launchers = pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
LIKE_NVIDIAS = """
FROM {base}
USER root
RUN printf '#!/bin/sh\\necho "== a banner of many lines =="\\nexec "$@"\\n' >/entry && chmod 755 /entry \\
 && useradd --uid 4711 somebody && mkdir /workspace && chown somebody /workspace
ENV OF_THE_IMAGE=yes
WORKDIR /workspace
USER somebody
ENTRYPOINT ["/entry"]
CMD ["bash"]
"""
TINY = """
FROM {base} AS whole
USER root
RUN mkdir /tiny && cd / \
 && ls -d usr/lib/*-linux-gnu/* \
  | grep -E '/(ld-linux|lib(c|m|z|expat|ffi|crypto|ssl|bz2|lzma|zstd)[.-])' >/tmp/list \
 && tar -c --exclude='*/test/*' -T /tmp/list bin lib lib64 usr/lib64 etc/passwd usr/bin/sh usr/bin/dash \
    usr/bin/python3 usr/bin/python3.* usr/lib/python3.* | tar -x -C /tiny \
 && mkdir /tiny/tmp /tiny/dev /tiny/proc /tiny/sys
FROM scratch
COPY --from=whole /tiny /
ENV OF_THE_IMAGE=yes PATH=/usr/bin:/bin
USER 4711
"""
PROGRAM = """
import os, pathlib, signal, socket, sys, time
deed, rank = (sys.argv[1:] + [""])[0], os.environ["RANK"]
print("inside", os.environ.get("OF_THE_IMAGE"), os.getuid(), os.environ["GREETING"], flush=True)
pathlib.Path(os.environ["MUSTER_OUT"], f"of-{rank}").write_text(sys.executable)
if deed and rank == "1":
    if deed == "exit":
        sys.exit(3)
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "eat":
        while not pathlib.Path(os.environ["MUSTER_OUT"], "limit").exists():
            time.sleep(0.05)
        eaten = [bytearray(os.urandom(1 << 20)) * 4 for _ in range(1 << 10)]
if deed:
    time.sleep(300)
"""


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> Iterator[str]:
    """An image on top of the node image, of which only Python, torch and MPI count."""
    base = docker("inspect", "--format", "{{.Config.Image}}", cluster.container("node1"))
    name = f"muster-like-nvidias:{NUMBER}"
    docker("build", "--quiet", "--tag", name, "-", stdin=LIKE_NVIDIAS.format(base=base))
    yield name
    docker("image", "rm", "--force", name)


@pytest.fixture(scope="module")
def tiny(cluster: Cluster) -> Iterator[str]:
    """An image of Python and a shell, 44 MB, without MPI and torch."""
    base = docker("inspect", "--format", "{{.Config.Image}}", cluster.container("node1"))
    name = f"muster-tiny:{NUMBER}"
    docker("build", "--quiet", "--tag", name, "-", stdin=TINY.format(base=base))
    yield name
    docker("image", "rm", "--force", name)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "a project")
    (made.path / "program.py").write_text(PROGRAM)
    return made


def launch(project: Project, image: str, *words: str) -> Launched:
    return project.launch("--image", image, "--env", "GREETING=it's", "--script", "program.py", *words)


def containers(job: str) -> str:
    return docker("ps", "--all", "--quiet", "--filter", f"name=muster-{job}")


def require_nothing_left(job: str) -> None:
    wait_until(lambda: not containers(job), lambda: f"the end of {containers(job)}")
    wait_until_clean(job)


def test_ranks_run_in_the_image_as_the_user_and_leave_nothing(project: Project, image: str) -> None:
    done = launch(project, image)
    assert done.status == 0, done.output
    for rank in (0, 1):
        assert f"[{rank} localhost] inside yes {os.getuid()} it's" in done.output
        out = Path(project.env["HOME"], ".muster", "jobs", done.job, "out", f"of-{rank}")
        assert out.read_text() == "/usr/bin/python3"
        assert out.stat().st_uid == os.getuid()
    assert "banner" not in done.output
    assert "DONE    2 ranks on 1 host, mpirun" in done.output
    require_nothing_left(done.job)


@soak
@launchers
def test_our_own_program_trains_in_the_image(project: Project, image: str, launcher: str) -> None:
    words = ("--launcher", launcher, "--args=--epochs 2", "--env", "OMP_NUM_THREADS=1")
    done = project.launch("--image", image, *words)
    assert done.status == 0, done.output
    assert f"ranks=2 hosts=1 backend=gloo launcher={launcher}" in done.output.replace(
        "backend=mpi", "backend=gloo"
    )
    require_nothing_left(done.job)


@soak
@launchers
@pytest.mark.parametrize(("deed", "status", "why"), [("exit", 3, "exit status 3"), ("kill", 137, "SIGKILL")])
def test_a_rank_that_fails_inside_is_named(
    project: Project, image: str, launcher: str, deed: str, status: int, why: str
) -> None:
    done = launch(project, image, "--launcher", launcher, f"--args={deed}")
    assert done.status == status, done.output
    failure = done.result["first_failure"]
    assert (failure["rank"], failure["host"]) == (1, "localhost")
    assert why in failure["reason"], failure
    require_nothing_left(done.job)


def begin(project: Project, image: str, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a launch; returns it, and its job, once both ranks run."""
    started = project.start(
        "--image", image, "--env", "GREETING=x", "--script", "program.py", "--args=wait", *words
    )
    lines = read_until(started, "inside yes", 2)
    return started, next(line.split()[1].rstrip(":") for line in lines if line.startswith("job "))


@soak
@launchers
def test_ctrl_c_ends_the_containers(project: Project, image: str, launcher: str) -> None:
    started, job = begin(project, image, "--launcher", launcher)
    assert containers(job)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=PATIENCE)
    assert started.returncode == 130
    require_nothing_left(job)


@soak
@launchers
def test_a_driver_that_is_killed_leaves_no_container(project: Project, image: str, launcher: str) -> None:
    started, job = begin(project, image, "--launcher", launcher)
    started.kill()
    started.communicate(timeout=PATIENCE)
    require_nothing_left(job)


@soak
def test_an_agent_that_is_killed_leaves_no_container(project: Project, image: str) -> None:
    started, job = begin(project, image)
    listed = subprocess.run(
        ("ps", "-o", "pid=", "--ppid", str(started.pid)), capture_output=True, text=True, check=True
    )
    for pid in listed.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    started.communicate(timeout=PATIENCE)
    require_nothing_left(job)


@soak
def test_a_container_that_is_removed_by_hand_ends_the_job(project: Project, image: str) -> None:
    started, job = begin(project, image)
    docker("rm", "--force", f"muster-{job}-0-localhost")
    output, _ = started.communicate(timeout=PATIENCE)
    assert started.returncode == 137, output
    require_nothing_left(job)


@soak
def test_a_rank_that_outgrows_the_containers_memory_is_explained(project: Project, image: str) -> None:
    words = ("--env", "GREETING=x", "--script", "program.py", "--args=eat")
    started = project.start("--image", image, *words)
    lines = read_until(started, "inside yes", 2)
    job = next(line.split()[1].rstrip(":") for line in lines if line.startswith("job "))
    docker("update", "--memory", "256m", "--memory-swap", "256m", f"muster-{job}-0-localhost")
    Path(project.env["HOME"], ".muster", "jobs", job, "out", "limit").touch()
    output, _ = started.communicate(timeout=PATIENCE)
    assert started.returncode == 137, output
    assert "memory" in output, output
    require_nothing_left(job)


@soak
def test_stacks_of_ranks_inside_are_read_from_outside(project: Project, image: str) -> None:
    started, job = begin(project, image)
    shown = project.muster("stacks", job)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=PATIENCE)
    assert shown.returncode == 0, shown.stderr
    assert "program.py" in shown.stdout, shown.stdout


@soak
def test_a_detached_job_inside_starts_again_and_ends(project: Project, image: str) -> None:
    words = ("--env", "GREETING=x", "--script", "program.py", "--args=exit", "--max-restarts", "1")
    job = project.detach("--image", image, *words)
    attached = project.muster("attach", job)
    assert attached.returncode == 3, attached.stdout + attached.stderr
    assert f"job {job}, restart 1: 2 ranks" in attached.stdout
    assert "FAILED  rank 1 on localhost: exit status 3" in attached.stdout
    require_nothing_left(job)


@soak
def test_the_hosts_mpirun_starts_ranks_in_an_image_that_has_none(project: Project, tiny: str) -> None:
    done = launch(project, tiny)
    assert done.status == 0, done.output
    assert "inside yes" in done.output
    require_nothing_left(done.job)


@soak
def test_a_registrys_image_is_pulled_with_the_login(project: Project, tiny: str, tmp_path: Path) -> None:
    (folder := tmp_path / "registry").mkdir()
    with registry.running(folder) as images:
        name = images.push(tiny, "team/tiny:1")
        refused = launch(project, name)
        assert refused.status == 3, refused.output
        assert "localhost: cannot use the image: docker pull: Error" in refused.output
        images.log_in(Path(project.env["HOME"], ".docker"))
        try:
            done = launch(project, name)
            assert done.status == 0, done.output
            assert "inside yes" in done.output
            pulled = [line for line in images.requests() if line.startswith("GET /v2/team/tiny/manifests/")]
            assert pulled
            log = done.folder / "logs" / "rank-0000@localhost.out"
            assert "inside yes" in log.read_text()
            assert "localhost: fetching" in (done.folder / "logs" / "driver.log").read_text()
            again = launch(project, name)
            assert again.status == 0, again.output
        finally:
            docker("image", "rm", name)
        assert pulled == [
            line for line in images.requests() if line.startswith("GET /v2/team/tiny/manifests/")
        ]
        assert images.password not in refused.output + done.output + again.output
    require_nothing_left(done.job)


@soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_podman_does_the_same(project: Project, tiny: str, number: signal.Signals) -> None:
    if not podman("run", "--rm", "--entrypoint", "/bin/sh", load_into_podman(tiny), "-c", ":"):
        pytest.skip("no podman here that starts a container")
    done = launch(project, tiny, "--engine", "podman")
    assert done.status == 0, done.output
    assert f"inside yes {os.getuid()} it's" in done.output
    started, job = begin(project, tiny, "--engine", "podman")
    started.send_signal(number)
    started.communicate(timeout=PATIENCE)
    wait_until(lambda: not podman("ps", "--all", "--quiet", "--filter", f"name=muster-{job}"), "its end")
    wait_until_clean(job)


def load_into_podman(image: str) -> str:
    if shutil.which("podman"):
        saved = subprocess.run(("docker", "save", image), capture_output=True, check=True, timeout=300)
        subprocess.run(("podman", "load"), input=saved.stdout, capture_output=True, check=True, timeout=300)
    return image


def podman(*words: str) -> str:
    """What podman prints, or `done` if that is nothing; empty if it fails, or is not here."""
    if not shutil.which("podman"):
        return ""
    done = subprocess.run(("podman", *words), capture_output=True, text=True, timeout=300, check=False)
    listing = words[0] == "ps"
    return "" if done.returncode else done.stdout.strip() or ("" if listing else "done")


@soak
@pytest.mark.timed  # beside four workers it took 2.01 s at a load of 11, of 2.0 s
def test_a_container_adds_little_to_a_start(project: Project, image: str) -> None:
    launch(project, image)  # the first look into the image
    pairs = [
        (
            launch(project, image).seconds,
            project.launch("--env", "GREETING=x", "--script", "program.py").seconds,
        )
        for _ in range(5)
    ]
    added = statistics.median(inside - outside for inside, outside in pairs)
    hold("what a container adds to a launch", added, 1.0)
