"""How a real Slurm takes hosts away, or gives none: time limits, preemption, queues, nodes that drain."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.slurm import FOLDER, WAITS, Slurm, slurm_cluster
from tests.load import hold
from tests.parallel import NUMBER
from tests.waiting import read_until, wait_until

pytestmark = pytest.mark.soak
TWO_WHOLE_NODES = "-N 2 -n 2 -w slurm2,slurm3 --exclusive"


@pytest.fixture(scope="module")
def made(node_image: None) -> Iterator[Slurm]:
    with slurm_cluster(f"muster-slurm-test{NUMBER or ''}", program=WAITS) as slurm:
        yield slurm


@pytest.fixture
def slurm(made: Slurm) -> Iterator[Slurm]:
    made.until_idle()
    yield made
    if left := made.jobs():  # of a test that failed: the next one needs the nodes
        made.run("scancel", *left)


def begun(slurm: Slurm, words: str, deed: str) -> tuple[str, str]:
    """A batch job of two ranks that have begun: its id, and Slurm's number of it."""
    job, number = slurm.submit(words, deed)
    slurm.until_printed(job, "begins", 2)
    return job, number


@contextmanager
def nodes_taken(slurm: Slurm) -> Iterator[None]:
    """A job of somebody else on all nodes."""
    number = slurm.run("sbatch", "--parsable", "-N3", "--exclusive", "--wrap", "sleep 300").stdout.strip()
    try:
        wait_until(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o%T").stdout, "the other job")
        yield
    finally:
        slurm.run("scancel", number)


def set_state(slurm: Slurm, state: str) -> None:
    """Set the state of slurm3, as its admin."""
    words = ("scontrol", "update", "nodename=slurm3", f"state={state}", "reason=disk")
    done = slurm.run(*words, user="root", folder="/")
    assert done.returncode == 0, done.stderr


def test_a_job_saves_before_its_time_limit_and_goes_on(slurm: Slurm) -> None:
    job, _ = begun(slurm, "-N 2 -n 2 -t 2 --signal=B:USR1@30 --requeue", "save")
    slurm.until_printed(job, "goes on", 2)
    status, output = slurm.attached(job)
    assert (status, "DONE    2 ranks on 2 hosts" in output) == (0, True), output


def test_a_job_that_does_not_save_ends_at_its_time_limit(slurm: Slurm) -> None:
    job, number = begun(slurm, "-N 2 -n 2 -t 1", "deaf")
    status, output = slurm.attached(job)
    assert f"FAILED  Slurm ended the allocation {number}: TIMEOUT" in output
    assert status == 3
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


def test_a_job_that_is_preempted_saves_and_goes_on_when_its_nodes_are_free(slurm: Slurm) -> None:
    job, _ = begun(slurm, f"{TWO_WHOLE_NODES} --requeue", "save")
    urgent = slurm.run("srun", "-p", "urgent", *TWO_WHOLE_NODES.split(), "sleep", "1")
    assert urgent.returncode == 0, urgent.stderr
    slurm.until_printed(job, "goes on", 2)
    status, output = slurm.attached(job)
    assert (status, "DONE    2 ranks on 2 hosts" in output) == (0, True), output


def test_a_job_that_is_preempted_and_may_not_be_queued_again_says_so(slurm: Slurm) -> None:
    job, number = begun(slurm, TWO_WHOLE_NODES, "deaf")
    urgent = slurm.run("srun", "-p", "urgent", *TWO_WHOLE_NODES.split(), "sleep", "1")
    assert urgent.returncode == 0, urgent.stderr
    status, output = slurm.attached(job)
    assert f"FAILED  Slurm ended the allocation {number}: PREEMPTED" in output
    assert status == 3
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


def test_a_launch_that_is_preempted_says_so(slurm: Slurm) -> None:
    with slurm.start("muster", "launch", "--slurm", TWO_WHOLE_NODES, "program.py", "deaf") as process:
        lines = read_until(process, "begins", 2)
        urgent = slurm.run("srun", "-p", "urgent", *TWO_WHOLE_NODES.split(), "sleep", "1")
        assert urgent.returncode == 0, urgent.stderr
        rest, _ = process.communicate(timeout=120)
    assert re.search(r"FAILED  Slurm ended the allocation \d+: PREEMPTED", rest), "".join(lines) + rest
    assert process.returncode == 3
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


def requeue(slurm: Slurm, number: str, *words: str) -> None:
    """Queue a job again, as its admin."""
    done = slurm.run("scontrol", *(words or ("requeue",)), number, user="root", folder="/")
    assert done.returncode == 0, done.stderr


def state(slurm: Slurm, job: str) -> dict[str, Any]:
    (found,) = json.loads(slurm.run("muster", "status", "--json", job).stdout)
    return dict(found)


def test_a_job_that_its_admin_queues_again_goes_on(slurm: Slurm) -> None:
    job, number = begun(slurm, "-N 2 -n 2 --requeue", "wait")
    requeue(slurm, number)
    slurm.until_printed(job, "restart 1 begins", 2)
    assert state(slurm, job)["state"] == "running"
    slurm.run("scancel", number)
    status, output = slurm.attached(job)
    assert f"STOPPED by scancel (Slurm's job {number})" in output
    assert status == 143
    assert slurm.run("ls", f"{FOLDER}/runs/{job}").stdout.count("batch") == 0


@pytest.mark.parametrize("special", [(), ("State=SpecialExit",)], ids=["held", "special exit"])
def test_a_job_that_is_requeued_and_held_goes_on(slurm: Slurm, special: tuple[str, ...]) -> None:
    job, number = begun(slurm, "-N 2 -n 2 --requeue", "wait")
    requeue(slurm, number, "requeuehold", *special)
    wait_until(lambda: state(slurm, job)["state"] == "waiting", lambda: f"{state(slurm, job)} to wait")
    slurm.run("scontrol", "release", number, user="root", folder="/")
    slurm.until_printed(job, "restart 1 begins", 2)
    slurm.run("scancel", number)
    assert slurm.attached(job)[0] == 143


def test_a_job_that_lost_a_node_goes_on_on_others(slurm: Slurm) -> None:
    job, number = begun(slurm, "-N 2 --ntasks-per-node=1 --requeue", "wait")
    assert state(slurm, job)["hosts"] == ["slurm1", "slurm2"]
    try:
        slurm.compose("kill", "slurm2")
        slurm.until_printed(job, "restart 1 begins", 2)
        assert state(slurm, job)["hosts"] == ["slurm1", "slurm3"]
        slurm.run("scancel", number)
        assert slurm.attached(job)[0] == 143
    finally:
        slurm.compose("up", "--detach")
        slurm.until_idle()


def test_a_job_that_is_over_and_is_queued_again_changes_nothing(slurm: Slurm) -> None:
    job, number = slurm.submit("-N 2 -n 3 --requeue", "fail")
    status, _ = slurm.attached(job)
    before = state(slurm, job)
    slurm.until_idle()
    requeue(slurm, number)
    log = f"{FOLDER}/runs/{job}/driver.log"
    said = f"{FOLDER}/runs/{job}: this job is over, so Slurm's next start of it does nothing; launch it again"
    wait_until(
        lambda: said in slurm.run("cat", log).stdout, lambda: slurm.run("cat", log).stdout, patience=120.0
    )
    slurm.until_idle()
    assert (state(slurm, job), status) == (before, 3)


def test_a_suspended_job_is_named_as_that(slurm: Slurm) -> None:
    with slurm.start("muster", "launch", "--slurm", "-N 2 -n 2", "program.py", "wait") as process:
        lines = read_until(process, "begins", 2)
        (number,) = slurm.jobs()
        slurm.run("scontrol", "suspend", number, user="root", folder="/")
        rest, _ = process.communicate(timeout=120)
    assert f"FAILED  Slurm suspended the allocation {number} (scontrol suspend)" in rest, (
        "".join(lines) + rest
    )
    assert process.returncode == 3
    wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


def test_hosts_that_do_not_come_in_time_are_not_waited_for(slurm: Slurm) -> None:
    with nodes_taken(slurm):
        before = slurm.jobs()
        began = time.monotonic()
        done = slurm.run("muster", "launch", "--slurm", "-N 3", "--start-timeout", "6", "program.py", "save")
        hold("until the launch gave up", time.monotonic() - began, 12.0)
        assert slurm.jobs() == before
    pattern = r"Slurm gave no hosts within 6 s: PENDING \((Resources|Priority)\)"
    assert re.search(pattern, done.stdout + done.stderr), done.stdout + done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [("-N 1 -p short -t 60", "PartitionTimeLimit"), ("-N 3 -p short -t 1", "PartitionNodeLimit")],
)
def test_a_limit_that_never_fits_is_an_error_at_once(slurm: Slurm, words: str, reason: str) -> None:
    done = slurm.run("muster", "launch", "--slurm", words, "program.py", "save")
    *_, refusal = done.stderr.splitlines()  # after lines of the progress, if Slurm takes its time
    assert re.fullmatch(rf"--slurm '{words}': Slurm never gives hosts: .* \({reason}\)", refusal), done
    assert done.returncode == 2
    wait_until(lambda: not slurm.jobs(), "the end of Slurm's job")
    detached = slurm.run("muster", "launch", "--slurm", words, "--detach", "program.py", "save")
    assert (detached.returncode, detached.stderr.splitlines()[-1]) == (2, refusal)
    wait_until(lambda: not slurm.jobs(), "the end of the batch job")


def test_a_launch_waits_for_a_node_that_drains_and_starts_when_it_is_back(slurm: Slurm) -> None:
    set_state(slurm, "drain")
    try:
        with slurm.start("muster", "launch", "--slurm", "-N 3 -n 3", "program.py", "save") as process:
            (line,) = read_until(process, "waits: PENDING", 1)[-1:]
            reason = r"Slurm's job \d+ waits: PENDING \(.*(DRAIN|Resources|unavailable|ReqNodeNotAvail)"
            assert re.search(reason, line), line
            set_state(slurm, "resume")
            read_until(process, "begins", 3)
            # Drained under a job that runs, it is taken from no one.
            set_state(slurm, "drain")
            slurm.run("scancel", *slurm.jobs())
            output, _ = process.communicate(timeout=120)
    finally:
        set_state(slurm, "resume")
    assert "STOPPED by scancel (Slurm's job " in output, output
    assert process.returncode == 143


@pytest.mark.parametrize("delay", [0.0, 0.3, 0.6, 1.0])
def test_an_allocation_that_is_revoked_while_it_starts_is_the_verdict(slurm: Slurm, delay: float) -> None:
    with slurm.start("muster", "launch", "--slurm", "-N 3 -n 3", "program.py", "save") as process:
        (number,) = wait_until(slurm.jobs, "Slurm's job", pause=0.05)
        time.sleep(delay)
        slurm.run("scancel", number)
        output, _ = process.communicate(timeout=120)
    said = {
        rf"job {number} got no hosts: .*revoked": 1,
        rf"slurm[\d\[,\]-]+: Slurm ended the allocation {number}: CANCELLED": 3,
        rf"STOPPED by scancel \(Slurm's job {number}\)": 143,
    }
    assert process.returncode in {status for words, status in said.items() if re.search(words, output)}, (
        output
    )
    wait_until(lambda: not slurm.jobs(), lambda: f"the end of {slurm.jobs()}, of which {number} was revoked")
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")
