"""What users and sites of a real Slurm do to a launch: variables, signals, a controller that is down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.slurm import FOLDER, WAITS, Slurm, slurm_cluster
from tests.parallel import NUMBER
from tests.waiting import read_until, wait_until

pytestmark = pytest.mark.soak
PROGRAM = """
import os, signal, time
noticed = []
signal.signal(signal.SIGUSR1, lambda number, frame: noticed.append(number))
print("rank", os.environ["RANK"], "begins", flush=True)
deadline = time.monotonic() + 600
while not noticed and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(1)
print("noticed", flush=True)
"""
ENDS = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""
OF_USER = (
    *("SLURM_EXPORT_ENV=NONE", "SRUN_EXPORT_ENV=NONE", "SLURM_LABELIO=1", "SLURM_STDOUTMODE=/tmp/out"),
    *("SLURM_CPU_BIND=quiet,map_cpu:0", "SLURM_DEBUG=2", "SRUN_OUTPUT=/tmp/out", "SLURM_NTASKS=9"),
    *("SLURM_TIME_FORMAT=relative", "SQUEUE_FORMAT2=JobID", "SQUEUE_STATES=PD", "SLURM_MPI_TYPE=pmi2"),
    *("SLURM_DISTRIBUTION=cyclic", "SLURM_KILL_BAD_EXIT=1", "SLURM_WAIT=1", "SLURM_EXCLUSIVE=1"),
    *("SLURM_WORKING_DIR=/nowhere", "SLURM_UMASK=0777", "SLURM_TIMELIMIT=0", "SRUN_INPUT=none"),
    *("SBATCH_EXPORT=NONE", "SBATCH_ARRAY_INX=1-2", "SBATCH_WAIT=1", "SBATCH_ERROR=/nowhere/x"),
    *("SALLOC_KILL_CMD=9", "SALLOC_DEBUG=2", "SLURM_TASKS_PER_NODE=7"),
)
"""Variables that Slurm's programs take as options."""


@pytest.fixture(scope="module")
def made(node_image: None) -> Iterator[Slurm]:
    name = f"muster-slurm-test{NUMBER or ''}"
    with slurm_cluster(name, program=PROGRAM, waits=WAITS, ends=ENDS) as slurm:
        yield slurm


@pytest.fixture
def slurm(made: Slurm) -> Slurm:
    made.until_idle()
    return made


def test_variables_of_the_users_shell_change_nothing(slurm: Slurm) -> None:
    launch = ("muster", "launch", "--slurm", "-N 2 -n 4", "ends.py")
    done = slurm.run("env", *OF_USER, *launch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"\] rank (\d) of 4\n", done.stdout)) == ["0", "1", "2", "3"], done.stdout
    assert "DONE    4 ranks on 2 hosts, mpirun" in done.stdout


def test_variables_of_the_users_shell_change_no_batch_job(slurm: Slurm) -> None:
    done = slurm.run(
        *("env", *OF_USER, "muster", "launch", "--slurm", "-N 2 -n 4", "--detach", "--env", "TOKEN=t"),
        "ends.py",
    )
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[1]
    status, output = slurm.attached(job)
    assert (status, "DONE    4 ranks on 2 hosts" in output) == (0, True), output


def test_a_batch_script_with_a_clean_environment_launches(slurm: Slurm) -> None:
    wrapped = "PATH=/usr/local/bin:$PATH muster launch --slurm ends.py"
    words = ("-N2", "--ntasks-per-node=2", "--export=NIL", f"--output={FOLDER}/wrapped", "--wrap", wrapped)
    submitted = slurm.run("sbatch", *words)
    assert submitted.returncode == 0, submitted.stderr

    def output() -> str:
        return slurm.run("cat", "wrapped").stdout

    wait_until(lambda: "DONE " in output(), output, patience=60.0)
    assert "4 ranks on 2 hosts" in output()
    job, _ = slurm.submit("-N 2 -n 2 --export=NIL", name="ends.py")
    assert slurm.attached(job)[0] == 0


def test_the_cluster_survives_a_job_whose_environment_it_cannot_make(slurm: Slurm) -> None:
    """For --export=NONE slurmd makes a namespace, which no container may without SYS_ADMIN."""
    slurm.run("sbatch", "-N1", "-w", "slurm2", "--export=NONE", "--wrap", "true")
    wait_until(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o%T").stdout, "the job")
    slurm.run("scancel", *slurm.jobs())
    slurm.until_idle()
    assert slurm.run("srun", "-w", "slurm2", "hostname").stdout == "slurm2\n"


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_signal_for_the_steps_reaches_the_ranks_and_ends_nothing(slurm: Slurm, launcher: str) -> None:
    launch = ("muster", "launch", "--slurm", "-N 2 -n 2", "--launcher", launcher, "--start-timeout", "300")
    with slurm.start(*launch, "program.py") as process:
        lines = read_until(process, "begins", 2)
        slurm.run("scancel", "--signal=USR1", *slurm.jobs())
        rest, _ = process.communicate(timeout=120)
    output = "".join(lines) + rest
    assert (process.returncode, output.count("] noticed")) == (0, 2), output


def test_an_allocation_that_cannot_be_given_back_is_named(slurm: Slurm) -> None:
    try:
        with slurm.start("muster", "launch", "--slurm", "-N 2 -n 2", "program.py") as process:
            lines = read_until(process, "begins", 2)
            (number,) = slurm.jobs()
            # A killed slurmctld forgets the last minutes: ended jobs run again, and numbers are used twice.
            slurm.run("scontrol", "shutdown", "slurmctld", user="root", folder="/")
            wait_until(lambda: slurm.run("scontrol", "ping").returncode != 0, "an end of slurmctld")
            slurm.run("sh", "-c", "kill -INT $(pgrep -o -f '[d]eploy.cli.entry')", folder="/")
            rest, _ = process.communicate(timeout=240)
    finally:
        slurm.run("slurmctld", user="root", folder="/")
        wait_until(lambda: slurm.run("scontrol", "ping").returncode == 0, "slurmctld")
    output = "".join(lines) + rest
    assert f"note: Slurm may still hold the hosts of its job {number} (" in output, output
    assert output.count(f"run: scancel {number}\n") == 1
    assert process.returncode == 130
    slurm.run("scancel", number)


def test_a_folder_that_the_nodes_do_not_share_is_named(slurm: Slurm) -> None:
    done = slurm.run(
        *("muster", "launch", "--slurm", "-N 1 -w slurm2", "--detach", "--runs", "/tmp/runs", "ends.py")
    )
    job = done.stdout.split()[1]

    def why() -> str:
        shown = slurm.run("muster", "status", "--runs", "/tmp/runs", "--json", job)
        (state,) = json.loads(shown.stdout)
        return str(state["why"])

    said = f"/tmp/runs/{job} is not shared with slurm2: give a --runs that login node and nodes share"
    wait_until(lambda: said in why(), why, patience=60.0)


def test_an_error_of_a_step_names_no_ssh(slurm: Slurm) -> None:
    with slurm.start("muster", "launch", "--slurm", "-N 2 -n 2", "program.py") as process:
        lines = read_until(process, "begins", 2)
        slurm.run("sh", "-c", "kill -KILL $(pgrep -n -f '[m]uster agent')", node="slurm2", folder="/")
        rest, _ = process.communicate(timeout=120)
    output = "".join(lines) + rest
    assert "SSH" not in output, output
    assert "FAILED  slurm2: " in output, output  # its agent, or mpirun's daemon, which ends with it
