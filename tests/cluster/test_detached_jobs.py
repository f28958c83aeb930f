"""Jobs whose driver is on the head: they survive their launcher, and can be asked for from anywhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_cluster_launch import job_processes
from tests.launching import MUSTER, Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

SLOW = """
import os, sys, time
for step in range(int(sys.argv[1])):
    if os.path.exists(os.environ["MUSTER_OUT"] + "/go"):
        break
    print("step", step, flush=True)
    time.sleep(0.25)
sys.exit(int(sys.argv[2]) if os.environ["RANK"] == "4" else 0)
"""


@pytest.fixture(autouse=True)
def slow(project: Project) -> None:
    (project.path / "slow.py").write_text(SLOW)


def no_job_is_left(cluster: Cluster) -> None:
    wait_until(lambda: not job_processes(cluster), lambda: f"the end of {job_processes(cluster)}")


def over(cluster: Cluster) -> None:
    """No rank is left; who asked about them may still be hanging up."""
    assert not [process for process in job_processes(cluster) if "slow.py" in process]
    no_job_is_left(cluster)


def state_of(project: Project, job: str) -> str:
    done = project.muster("status", job, "--json")
    assert done.returncode == 0, done.stderr
    (state,) = json.loads(done.stdout)
    return str(state["state"])


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_a_detached_job_ends_like_any_other(project: Project, cluster: Cluster, launcher: str) -> None:
    job = project.detach("--launcher", launcher, "--script", "slow.py", "--args=4000 3")
    (record,) = (project.path / "runs").glob("*/*")
    assert record.name == "hosts.json", "the run itself is on its head"
    # The cluster of the launch, its users and keys are asked, whatever hosts.txt says by now.
    (project.path / "hosts.txt").write_text("localhost\n")
    wait_until(lambda: "ranks 0-5:" in project.muster("stacks", job).stdout, "the stacks of all ranks")
    cluster.exec("node3", ["touch", f"/home/muster/.muster/jobs/{job}/out/go"])
    attached = project.muster("attach", job)
    assert attached.returncode == 3, attached.stderr
    assert "FAILED  rank 4 on node3: exit status 3" in attached.stdout
    folder = project.path / "runs" / job
    assert f"logs: runs/{job}/logs" in attached.stdout
    assert (folder / "logs" / "rank-0004@node3.out").read_text().startswith("step 0\n")
    assert json.loads((folder / "result.json").read_text())["exit_status"] == 3
    no_job_is_left(cluster)


def test_a_job_goes_on_when_who_is_attached_leaves(project: Project, cluster: Cluster) -> None:
    job = project.detach("--script", "slow.py", "--args=4000 0")
    watching = subprocess.Popen(
        [str(MUSTER), "attach", job],
        cwd=project.path,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    assert watching.stdout is not None
    assert re.match(r"\[\d node\d\] step \d+\n", watching.stdout.readline())
    watching.send_signal(signal.SIGINT)
    said = watching.communicate(timeout=100)[0]
    assert f"{job} keeps running on its hosts; see it again with: muster attach {job}" in said
    assert watching.returncode == 130
    assert state_of(project, job) == "running"

    elsewhere = ("--hosts", str(project.path / "hosts.txt"), "--runs", "elsewhere")
    table = project.muster("status", *elsewhere).stdout
    assert re.search(rf"{job} +running +\S+ +6 +3 ", table), table
    told = project.muster("stop", job, *elsewhere)
    assert told.returncode == 0, told.stderr
    assert f"{job} stopped by muster stop, by " in told.stdout
    over(cluster)
    again = project.muster("stop", job)
    assert again.returncode == 0
    assert f"{job} is over: stopped by muster stop" in again.stdout


def test_a_job_of_a_terminal_is_seen_from_elsewhere(project: Project, cluster: Cluster) -> None:
    with project.start("--script", "slow.py", "--args=4000 0") as process:
        # Its notes may name jobs of other tests, which end meanwhile.
        lines = read_until(process, "] step ", 1)
        job = lines[0].split()[1].rstrip(":")
        assert re.match(r"\[\d node\d\] step \d+\n", lines[-1])
        assert state_of(project, job) == "running"
        elsewhere = ("--runs", "elsewhere")
        assert f"{job}  running" in project.muster("status", *elsewhere).stdout
        logs = project.muster("logs", job, *elsewhere)
        assert (logs.returncode, logs.stdout) == (2, "")
        assert f"the driver of {job} runs in a terminal; its output is on " in logs.stderr
        assert logs.stderr.endswith(f"in {project.path}/runs/{job}\n")
        told = project.muster("stop", job, *elsewhere)
        unrecorded = "no record here of how its hosts are reached, so the hosts of hosts.txt are asked"
        assert (told.returncode, told.stderr) == (0, f"{job}: {unrecorded}\n")
        assert f"{job} stopped by muster stop, by " in told.stdout
        said = process.communicate(timeout=100)[0]
    assert process.returncode == 143
    assert "STOPPED by muster stop, by " in said
    over(cluster)


def test_a_detached_job_is_lost_with_its_driver(project: Project, cluster: Cluster) -> None:
    job = project.detach("--script", "slow.py", "--args=4000 0")
    listed = cluster.exec("node1", ["cat", f"/home/muster/.muster/jobs/{job}/run/job.json"])
    driver = json.loads(listed.stdout)["driver"]["pid"]
    cluster.exec("node1", ["kill", "-9", str(driver)])
    wait_until(lambda: state_of(project, job) == "lost", "the state lost")
    attached = project.muster("attach", job)
    assert attached.returncode == 3
    assert f"LOST    its driver on node1 (process {driver}) ended without a result" in attached.stderr
    no_job_is_left(cluster)


@pytest.mark.soak
def test_logs_are_one_story_with_filters(project: Project, cluster: Cluster) -> None:
    job = project.detach("--script", "slow.py", "--args=6 0", "--env", "HF_TOKEN=hf_0f1e2d")
    followed = project.muster("logs", job, "-f", "--rank", "5").stdout
    lines = "".join(f"[5 node3] step {step}\n" for step in range(6))
    assert followed.startswith(f"{lines}\nDONE "), followed
    every = project.muster("logs", job[-4:], "--grep", "step [45]").stdout.splitlines()
    assert sorted(every) == sorted(
        f"[{rank} node{rank // 2 + 1}] step {n}" for rank in range(6) for n in (4, 5)
    )
    missing = project.muster("logs", "nothing-like-it")
    assert missing.returncode == 2
    assert "no job nothing-like-it here or on the hosts; the newest: " in missing.stderr
    assert f"{job} (done)" in missing.stderr
    leaked = cluster.exec("node1", ["grep", "-rl", "hf_0f1e2d", f"/home/muster/.muster/jobs/{job}"])
    assert (leaked.returncode, leaked.stdout) == (1, "")


def test_a_head_that_cannot_log_in_elsewhere_is_explained(project: Project, cluster: Cluster) -> None:
    cluster.exec("node1", ["sh", "-c", "mkdir -p ~/.ssh && printf 'Host node3\\n  Port 1\\n' >~/.ssh/config"])
    try:
        refused = project.launch("--detach", "--script", "slow.py", "--args=1 0")
    finally:
        cluster.exec("node1", ["sh", "-c", "rm ~/.ssh/config"])
    assert refused.status == 3
    assert refused.output.startswith("node3: node1 cannot log in there: ssh: connect to host node3 port 1: ")
    assert (
        "a detached job needs that: try ssh node3 on node1; setup.yml arranges it for the first"
        in refused.output
    )
    no_job_is_left(cluster)


# -- where the ranks of a job are: asked for from elsewhere, and kept when the job stalls --


if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

# Rank 5 waits for a file without a writer; the others wait for it. No rank needs torch for that.
PROGRAM = """
import os, time
def read_shard():
    os.mkfifo("shard")
    open("shard")
def all_reduce():
    time.sleep(300)
print("ready", flush=True)
read_shard() if os.environ["RANK"] == "5" else all_reduce()
"""


def stacks(project: Project, job: str) -> subprocess.CompletedProcess[str]:
    return project.muster("stacks", job)


def seen_whole(project: Project, job: str) -> str:
    """The stacks that were asked for, once every rank has come from its last words to where it waits."""
    answers: list[str] = []

    def both_places() -> bool:
        done = stacks(project, job)
        answers.append(done.stdout + done.stderr)
        others, _, odd = done.stdout.partition("rank 5:")
        return "ranks 0-4:" in others and "all_reduce (" in others and "read_shard (" in odd

    wait_until(both_places, lambda: f"both places, but: {answers}")
    return answers[-1]


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_the_stacks_of_a_running_job_can_be_read(project: Project, cluster: Cluster, launcher: str) -> None:
    (project.path / "stuck.py").write_text(PROGRAM)
    with project.start("--launcher", launcher, "--script", "stuck.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 6)))
        assert found
        shown = seen_whole(project, found[1][-4:])
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=PATIENCE)
    assert_odd(shown)


def assert_odd(shown: str) -> None:
    others, _, odd = shown.partition("rank 5:")
    assert others.startswith("ranks 0-4:\n    all_reduce (stuck.py:7)"), shown
    assert odd.startswith("\n    read_shard (stuck.py:5)"), shown


def test_a_job_that_is_nowhere_has_no_stacks(project: Project, cluster: Cluster) -> None:
    done = stacks(project, "20260101-000000-0000")
    assert done.returncode == 2
    assert "no job 20260101-000000-0000 here or on the hosts" in done.stderr
