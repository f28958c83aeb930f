"""Launches on a real Slurm: three containers with slurmctld, slurmd and munge (docker/slurm)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.slurm import Slurm, slurm_cluster
from tests.parallel import NUMBER
from tests.waiting import wait_until

PROGRAM = """
import os, socket, sys, time
variables = sorted(name for name in os.environ if name.startswith("SLURM"))
print("rank", os.environ["RANK"], "on", socket.gethostname(), variables, flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(600)
"""
# numpy is an installed module, of which a restart has the import done.
RESTARTS = """
import os, time
import numpy
restart = os.environ["MUSTER_RESTART"]
print("rank", os.environ["RANK"], "is", os.getpid(), flush=True)
while restart == "0" or not os.path.exists(os.path.expanduser("~/go")):  # the nodes share their homes
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def slurm(node_image: None) -> Iterator[Slurm]:
    with slurm_cluster(f"muster-slurm-test{NUMBER or ''}", program=PROGRAM, restarts=RESTARTS) as made:
        yield made


def until_all_wait(process: subprocess.Popen[str], ranks: int) -> list[str]:
    """The lines of a launch until each of its ranks has printed a line."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if sum("] rank " in seen for seen in lines) == ranks:
            return lines
    pytest.fail("".join(lines))


def test_a_launch_takes_hosts_and_slots_from_slurm_and_gives_them_back(slurm: Slurm) -> None:
    done = slurm.run("muster", "launch", "--slurm", "-N 3 -n 4", "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    started = re.findall(r"\] rank (\d) on (slurm\d) (\[.*\])", done.stdout)
    assert sorted(started) == [
        ("0", "slurm1", "[]"),
        ("1", "slurm1", "[]"),
        ("2", "slurm2", "[]"),
        ("3", "slurm3", "[]"),
    ]
    assert "DONE    4 ranks on 3 hosts, mpirun" in done.stdout
    wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    assert slurm.left() == ""


def test_scancel_is_the_verdict_and_nothing_is_left(slurm: Slurm) -> None:
    slurm.until_idle()
    with slurm.start("muster", "launch", "--slurm", "-N 3 -n 3", "program.py", "wait") as process:
        lines = until_all_wait(process, 3)
        (job,) = slurm.jobs()
        slurm.run("scancel", job)
        assert process.stdout is not None
        output = "".join([*lines, *process.stdout])
    assert f"STOPPED by scancel (Slurm's job {job}); the job was ended on every host" in output
    assert process.returncode == 143
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


def test_what_slurm_refuses_is_quoted(slurm: Slurm) -> None:
    refused = slurm.run("muster", "launch", "--slurm", "-N 3 -p gpu", "program.py")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "invalid partition specified: gpu" in refused.stderr
    site = slurm.run("muster", "check", "--slurm", "--json")
    assert site.returncode == 0, site.stderr
    assert json.loads(site.stdout)["findings"] == []


@pytest.mark.soak
@pytest.mark.parametrize("option", [("--slurm",), ()], ids=["named", "not named"])
def test_a_launch_inside_of_an_allocation_uses_it(slurm: Slurm, option: tuple[str, ...]) -> None:
    slurm.until_idle()
    launch = ("muster", "launch", *option, "--launcher", "torchrun", "program.py")
    done = slurm.run("salloc", "--quiet", "-N2", "--ntasks-per-node=2", *launch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DONE    4 ranks on 2 hosts, torchrun" in done.stdout


@pytest.mark.soak
def test_benchmarks_take_hosts_from_slurm_and_give_them_back(slurm: Slurm) -> None:
    slurm.until_idle()
    given = ("--backend", "gloo", "--json")
    done = slurm.run("muster", "bench", "links", "--slurm", "-N 3", "--short", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["hosts"] == ["slurm1", "slurm2", "slurm3"]
    words = ("all_reduce", "--slurm", "-N 3 -n 3", "-e", "1K", *given)
    done = slurm.run("muster", "bench", "collectives", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ranks"] == 3
    wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    assert slurm.left() == ""


def test_a_driver_that_is_killed_leaves_no_allocation(slurm: Slurm) -> None:
    slurm.until_idle()
    with slurm.start("muster", "launch", "--slurm", "-N 3 -n 3", "program.py", "wait") as process:
        until_all_wait(process, 3)
        slurm.run("pkill", "-9", "-f", "launch --slurm")
    wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_restart_has_the_imports_done(slurm: Slurm, launcher: str) -> None:
    slurm.until_idle()
    slurm.run("rm", "-f", "go", folder="/home/muster")
    policy = ("--max-restarts", "1", "--preload", "--launcher", launcher)
    with slurm.start("muster", "launch", "--slurm", "-N 3 -n 3", *policy, "restarts.py") as process:
        lines = until_all_wait(process, 3)
        (run,) = re.findall(r"job (\S+):", "".join(lines))
        ready = "the next attempt starts with its imports done"
        wait_until(lambda: preloaded(slurm, run).count(ready) == 3, "the imports")
        (victim,) = re.findall(r"rank 2 is (\d+)", "".join(lines))
        slurm.run("kill", "-9", victim, node="slurm3")
        done = "ranks started with their imports done"
        wait_until(lambda: preloaded(slurm, run).count(done) == 3, lambda: preloaded(slurm, run))
        slurm.run("touch", "go", folder="/home/muster")
        assert process.stdout is not None
        output = "".join([*lines, *process.stdout])
    assert process.returncode == 0, output


def preloaded(slurm: Slurm, run: str) -> str:
    """What the hosts of a run say of the imports for the next attempt."""
    lines = slurm.run("cat", f"runs/{run}/events.jsonl").stdout.splitlines()
    return "\n".join(line for line in lines if "host.preloaded" in line)


@pytest.mark.soak
def test_a_node_that_dies_is_named_and_the_job_goes_on_on_what_is_left(slurm: Slurm) -> None:
    slurm.until_idle()
    policy = ("--max-restarts", "1", "--min-hosts", "2")
    words = ("muster", "launch", "--slurm", "-N 3 -n 3", *policy, "program.py", "wait")
    try:
        with slurm.start(*words) as process:
            lines = until_all_wait(process, 3)
            slurm.compose("kill", "slurm3")
            lines += until_all_wait(process, 2)
            slurm.run("pkill", "-INT", "-f", "launch --slurm")
            assert process.stdout is not None
            output = "".join([*lines, *process.stdout])
        assert re.search(r"slurm3: .*; restart 1 of 1 on slurm1, slurm2\n", output), output
        assert process.returncode == 130
    finally:
        slurm.compose("up", "--detach")
        slurm.until_idle()
