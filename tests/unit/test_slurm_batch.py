"""A detached launch as a batch job of Slurm: what is submitted, and what is known of it later."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.cli import inventory
from muster.deploy.cli.launch import options_for_slurm
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.cli.shared import THIS_ALLOCATION, SlurmOptions
from muster.deploy.core.connect.pipe import OpenPipe
from muster.deploy.core.connect.requests import JobState
from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job import find
from muster.deploy.core.job.attempt_record import shown_command
from muster.deploy.core.job.find import LocalRuns, LocatedJob
from muster.deploy.core.job.result import Failure, LaunchResult, interruption
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.core.wire.job_folders import identity
from muster.deploy.features.slurm import allocation, batch, batch_main, blame, grant
from muster.deploy.features.slurm.allocation import Allocation
from muster.deploy.features.slurm.batch import Batch, batch_of, submit
from muster.deploy.features.slurm.batch_runs import BatchRuns
from muster.deploy.features.slurm.mark import any_mark, mark_of, write_mark
from muster.deploy.features.slurm.options import AllocationOptions
from tests.slurm import SHOW_JOB, put_programs
from tests.unit.tells import TELLS, TellOptions
from tests.unit.test_attempts import DONE, FAILED

NAME = "20261122-120000-abcd"
TELL = "MUSTER_TELL"
TOLD = "/site/chat.example.org"
TWO = Allocation("7", (Host("n1", slots=2), Host("n2", slots=1)))


@pytest.fixture(autouse=True)
def sigterm_stays() -> Iterator[None]:
    """A batch job that is queued again ignores SIGTERM; later tests, and their processes, must not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put programs of this name and shell text on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return lambda **texts: put_programs(tmp_path / "bin", **texts)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchSpec:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print('as it was')\n")
    tree = scan(project)
    env = (("A", "1"), ("HF_TOKEN", "s3cret"), ("PIN", "hidden too"))
    program = Program(script="train.py")
    library = dataclasses.replace(tree, files=())
    monkeypatch.setattr(batch, "own_code", lambda: library)  # the tests of a cluster run the whole driver
    given: dict[str, Any] = {"program": program, "env": env, "hidden": ("PIN", "--tell"), "min_hosts": 0}
    given["command"] = ("muster", "launch", "--env", "A=1", "--env", "HF_TOKEN=s3cret", "--env", "PIN")
    given["command"] += ("--tell", TOLD, "train.py")
    return LaunchSpec(job=NAME, tree=tree, library=library, **given)


def test_the_users_options_follow_ours_and_precede_the_script() -> None:
    argv = Batch(Path("/runs/j"), ("-N", "2", "--signal=B:USR1@300"), "python3").command
    assert argv[:3] == ("sbatch", "--parsable", "--no-requeue")
    assert "--no-kill" not in argv
    assert argv.index("--signal=B:USR1@60") < argv.index("--signal=B:USR1@300")
    assert argv[-1] == "/runs/j/batch/script"


def test_the_script_becomes_the_driver_and_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $(x)"
    done = subprocess.run(
        ["sh", "-c", Batch(folder, (), "python3").script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"{folder}: not on ")
    assert "--runs that login node and nodes share" in done.stderr
    folder.mkdir()
    (folder / "result.json").touch()  # an admin may have Slurm start a job again that is over
    done = subprocess.run(
        ["sh", "-c", Batch(folder, (), "python3").script], capture_output=True, text=True, check=False
    )
    over = "this job is over, so Slurm's next start of it does nothing; launch it again"
    assert (done.returncode, done.stderr) == (3, f"{folder}: {over}\n")
    last = Batch(folder, (), "/my env/python").script.splitlines()[-1]
    assert shlex.split(last)[:3] == ["exec", "/my env/python", "-I"]


@pytest.mark.parametrize("python", ["~/my env/bin/python", "my env/bin/python"])
def test_the_drivers_python_may_be_named_from_the_home_folder(tmp_path: Path, python: str) -> None:
    put_programs((tmp_path / "my env" / "bin"), python='echo "$1"')
    (tmp_path / "runs" / "j" / "batch" / "driver").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-c", Batch(tmp_path / "runs" / "j", (), python).script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path / "runs",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (0, "-I\n"), done.stderr


def to_batch_job(python: str) -> OpenPipe:
    return allocation.steps(python, TWO)


def to_attached_launch(python: str) -> OpenPipe:
    with inventory.allocated(SlurmOptions(slurm=THIS_ALLOCATION, python=python), None) as found:
        return found.open_pipe


@pytest.mark.parametrize("way", [to_batch_job, to_attached_launch])
@pytest.mark.parametrize(
    ("python", "meant"),
    [
        ("~/venv/bin/python", "~/venv/bin/python"),
        ("venv/bin/python", "~/venv/bin/python"),
        ("python3.12", "python3.12"),
        ("", "python3"),
    ],
)
def test_steps_start_the_same_python(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[str], OpenPipe], python: str, meant: str
) -> None:
    started: list[str] = []

    def pipe(number: str, host: Host, python: str, explain: Callable[[str], str], gres: str | None) -> None:
        started.append(python)

    monkeypatch.setattr(allocation, "SrunPipe", pipe)
    monkeypatch.setattr(grant, "own_allocation", lambda environ: TWO)
    way(python)(TWO.hosts[0])
    assert started == [meant]


def test_a_waiting_job_keeps_its_tree(slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path) -> None:
    slurm(sbatch=f'env > {tmp_path}/env; echo "7;cluster"')
    job = job.having(TellOptions(TOLD))
    made = batch_of(job, ["-N", "2", "--requeue"], tmp_path / "runs")
    assert submit(job, made, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}) == "7"
    (tmp_path / "project" / "train.py").write_text("changed since")
    run, given = batch_main._begin(
        made.folder,
        batch.with_secrets(_kept(made), {"HF_TOKEN": "s3cret", "PIN": "p", TELL: TOLD}),
        TWO,
        requeue=True,
    )
    assert given.tree.source(given.tree.files[0]).read_text() == "print('as it was')\n"
    assert (given.hosts, given.min_hosts, given.of(AllocationOptions).allocation) == (TWO.hosts, 2, "7")
    assert given.env == (("A", "1"), ("HF_TOKEN", "s3cret"), ("PIN", "p"))
    assert given.may_restart
    assert given.of(TellOptions).tell == TOLD
    shown = "muster launch --env A=1 --env HF_TOKEN --env PIN --tell '***' train.py"
    assert shown_command(given.command, given.hidden) == shown
    assert run.detached
    written = b"".join(path.read_bytes() for path in made.folder.rglob("*") if path.is_file())
    assert b"s3cret" not in written
    assert b"hidden too" not in written
    assert b"chat.example.org" not in written
    assert {"HF_TOKEN=s3cret", f"{TELL}={TOLD}"} <= {*(tmp_path / "env").read_text().splitlines()}
    assert made.folder.stat().st_mode & 0o077 == 0
    mark = mark_of(made.folder)
    assert mark == ("7", True, True, "python3")


def _kept(made: Batch) -> LaunchSpec:
    return LaunchSpec.of_json(json.loads((made.folder / "batch" / "job.json").read_text()), (TellOptions,))


def test_a_value_that_slurm_did_not_pass_on_is_named(job: LaunchSpec) -> None:
    with pytest.raises(MusterError, match=r"--env HF_TOKEN: Slurm did not pass it on; leave --export out"):
        batch.with_secrets(batch.without_secrets(job), {"PIN": ""})
    job = dataclasses.replace(job, env=()).having(TellOptions(TOLD))
    with pytest.raises(MusterError, match=r"--tell: Slurm did not pass it on; leave --export out"):
        batch.with_secrets(batch.without_secrets(job), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1', "invalid partition specified"),
        ("exit 4", "sbatch ended with status 4"),
    ],
)
def test_what_sbatch_refuses_is_quoted_and_leaves_no_folder(
    slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path, text: str, message: str
) -> None:
    slurm(sbatch=text)
    with pytest.raises(UsageError, match=message):
        submit(job, batch_of(job, ["-p", "gpu"], tmp_path / "runs"), {"PATH": f"{tmp_path / 'bin'}:/bin"})
    assert not (tmp_path / "runs" / NAME).exists()


def test_an_endless_wait_is_taken_back(slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path) -> None:
    squeue = 'echo "PENDING|PartitionTimeLimit|N/A"'
    slurm(sbatch="echo 17", squeue=squeue, scancel=f'echo "$@" >>{tmp_path}/cancelled')
    with pytest.raises(UsageError) as refused:
        submit(job, batch_of(job, ["-t", "60"], tmp_path / "runs"), dict(os.environ))
    why = "a time limit longer than that of the partition (PartitionTimeLimit)"
    assert str(refused.value) == f"--slurm '-t 60': Slurm never gives hosts: {why}"
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert not (tmp_path / "runs" / NAME).exists()


def test_a_job_that_cannot_be_marked_is_taken_back(
    slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(batch, "write_mark", full)
    slurm(sbatch="echo 17", scancel=f'echo "$@" >>{tmp_path}/cancelled')
    made = batch_of(job, ["-p", "gpu"], tmp_path / "runs")
    with pytest.raises(MusterError, match="cannot make the run's folder: No space left"):
        submit(job, made, dict(os.environ))
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert not made.folder.exists()


@pytest.mark.parametrize(
    ("sbatch", "said"),
    [("exec sleep 60", "sbatch: no answer"), ("echo submitted", r"no number of a job, but 'submitted\\n'")],
)
def test_a_job_that_sbatch_may_have_handed_over_is_taken_back(
    slurm: Callable[..., None],
    job: LaunchSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sbatch: str,
    said: str,
) -> None:
    monkeypatch.setattr(batch, "SECONDS", 0.05 if "sleep" in sbatch else 60.0)
    slurm(sbatch=sbatch, scancel=f'echo "$@" >>{tmp_path}/cancelled')
    with pytest.raises(MusterError, match=said):
        submit(job, batch_of(job, [], tmp_path / "runs"), dict(os.environ))
    assert (tmp_path / "cancelled").read_text() == f"--me --name=muster-{NAME}\n"


def test_an_interrupt_after_the_submission_takes_the_job_back(
    slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(number: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "why_waits", interrupted)
    slurm(sbatch="echo a site may print; echo '17;cluster'", scancel=f'echo "$@" >>{tmp_path}/cancelled')
    with pytest.raises(KeyboardInterrupt):
        submit(job, made := batch_of(job, [], tmp_path / "runs"), dict(os.environ))
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert not made.folder.exists()


@pytest.mark.parametrize(
    ("slurm", "given", "message"),
    [
        ("here", {}, r'--slurm "-N 2 -t 60" --detach'),
        ("-N 2", {"include": "a"}, "--include needs hosts.*-w node1"),
        ("-N 2", {"slots": 2}, "--slots needs hosts.*--ntasks-per-node"),
        ("-N 2", {"requirements": "r.txt"}, "--requirements needs hosts"),
    ],
)
def test_options_that_need_hosts_are_refused(slurm: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options_for_slurm(LaunchOptions(slurm=slurm, detach=True, **given))


def test_a_batch_job_is_a_detached_launch_with_options_of_slurm() -> None:
    assert options_for_slurm(LaunchOptions(slurm="-N 2 -t 60", detach=True)) == ["-N", "2", "-t", "60"]
    assert options_for_slurm(LaunchOptions(slurm="-N 2")) is None


# -- what is known of it later --


def make_run(runs: Path, *, result: dict[str, Any] | None = None) -> Path:
    folder = runs / NAME
    folder.mkdir(parents=True)
    record = {
        **{"job": NAME, "launcher": "mpirun", "hosts": [], "ranks": 0, "attempt": 0, "started": 1000.0},
        **{"detached": True, "driver": identity(), "driver_folder": str(folder)},
    }
    (folder / "job.json").write_text(json.dumps(record))
    if result:
        (folder / "result.json").write_text(json.dumps({"attempt": 0, "ended": 1060.0, **result}))
    write_mark(folder, "7", ["sbatch"])
    return folder


def known(runs: Path) -> LocatedJob:
    assert any_mark(runs)
    (found,) = find.jobs_at([BatchRuns(runs, LocalRuns(runs))])
    return found


def state(runs: Path) -> JobState:
    return known(runs).state


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_launch_records_its_allocation_unless_it_is_a_batch_job(tmp_path: Path, is_batch: bool) -> None:
    if is_batch:
        write_mark(tmp_path, "7", ["sbatch"], requeue=True, python="python3")
    before = mark_of(tmp_path)
    plan = SimpleNamespace(spec=LaunchSpec(job=NAME, python="~/venv/bin/python"))
    attempt: Any = SimpleNamespace(folder=SimpleNamespace(path=tmp_path), plan=plan)
    blame.AllocationEnd(Allocation("17", ())).begins(attempt)
    mark = mark_of(tmp_path)
    assert mark == (before or ("17", False, False, "~/venv/bin/python"))


@pytest.mark.parametrize(
    ("squeue", "scontrol", "expected", "why"),
    [
        ("7 PENDING|Resources|N/A", "false", "waiting", "Slurm's job 7: PENDING (Resources)"),
        ("7 RUNNING|None|N/A", "false", "running", ""),
        ("7 COMPLETING|None|N/A", "false", "running", ""),
        ("7 SUSPENDED|None|N/A", "false", "running", "Slurm's job 7: SUSPENDED"),
        ("7 REQUEUE_HOLD|JobHeldAdmin|N/A", "false", "waiting", "job 7: REQUEUE_HOLD (JobHeldAdmin)"),
        ("7 SPECIAL_EXIT|None|N/A", "false", "waiting", "Slurm's job 7: SPECIAL_EXIT"),
        ("7 PENDING|launch failed requeued held|N/A", "false", "waiting", "(launch failed requeued held)"),
        ("", "echo JobState=FAILED BatchHost=n2", "lost", " is not shared with n2: give a --runs that "),
        ("", "echo JobState=NODE_FAIL Reason=NodeDown", "lost", "the allocation 7: NODE_FAIL (NodeDown)"),
        ("8 PENDING|Resources|N/A", "echo JobState=CANCELLED Reason=None", "lost", "allocation 7: CANCELLED"),
        ("", "false", "lost", "Slurm ended the allocation 7: CANCELLED by 1000"),
    ],
)
def test_a_run_without_a_driver_is_what_slurm_says(
    slurm: Callable[..., None], tmp_path: Path, squeue: str, scontrol: str, expected: str, why: str
) -> None:
    slurm(squeue=f"printf '%s\\n' '{squeue}'", scontrol=scontrol, sacct="echo 'CANCELLED by 1000'")
    make_run(tmp_path / "runs")
    found = state(tmp_path / "runs")
    assert found.state == expected
    assert why in found.why
    assert found.running == (expected in {"waiting", "running"})


def test_slurm_is_not_asked_about_a_job_that_is_over(slurm: Callable[..., None], tmp_path: Path) -> None:
    slurm(squeue=f"touch {tmp_path}/asked")
    make_run(tmp_path / "runs", result={"exit_status": 3})
    assert state(tmp_path / "runs").state == "failed"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("status", [0, 75])
def test_a_job_that_slurm_starts_again_waits(slurm: Callable[..., None], tmp_path: Path, status: int) -> None:
    slurm(squeue="echo '7 PENDING|BeginTime|2026-11-22T12:00:00'")
    (make_run(tmp_path / "runs", result={"exit_status": status}) / "batch").mkdir()
    found = state(tmp_path / "runs")
    assert (found.state, found.exit_status) == ("waiting", None)
    assert found.why == "Slurm's job 7: PENDING (BeginTime), expected at 2026-11-22T12:00:00"


def test_a_job_that_may_be_requeued_may_continue(slurm: Callable[..., None], tmp_path: Path) -> None:
    """Whoever is attached must not take the end of an attempt for that of the job."""
    slurm(squeue="echo '7 COMPLETING|None|N/A'")
    (make_run(tmp_path / "runs", result={"exit_status": 75}) / "batch").mkdir()
    found = state(tmp_path / "runs")
    assert (found.state, found.running, found.exit_status) == ("running", True, None)


def test_a_job_that_waits_is_stopped_in_the_queue(slurm: Callable[..., None], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    slurm(
        squeue=f"[ -e {gone} ] || echo '7 PENDING|Resources|N/A'",
        scancel=f'echo "$@" > {gone}',
        scontrol="false",
    )
    (make_run(tmp_path / "runs") / "batch" / "store").mkdir(parents=True)
    *_, ended = find.stop(known(tmp_path / "runs"), "by ml on login")
    assert gone.read_text() == "7\n"
    assert not (tmp_path / "runs" / NAME / "batch").exists()
    assert (ended.state, ended.exit_status, ended.why) == ("stopped", 143, "muster stop, by ml on login")


def test_a_driver_on_a_node_gets_its_signal_through_slurm(slurm: Callable[..., None], tmp_path: Path) -> None:
    folder, told = tmp_path / "runs" / NAME, tmp_path / "told"
    result = {"attempt": 0, "ended": 1.0, "exit_status": 143}
    slurm(
        squeue="echo '7 RUNNING|None|N/A'",
        scancel=f"echo \"$@\" > {told}; echo '{json.dumps(result)}' > {folder}/result.json",
    )
    make_run(tmp_path / "runs")
    *_, ended = find.stop(known(tmp_path / "runs"), "by ml on login")
    assert ended.exit_status == 143
    assert told.read_text() == "--batch --signal=TERM 7\n"
    assert json.loads((folder / "stop.json").read_text())["by"] == "by ml on login"


# -- the driver, as a part of the job --

TERM = dataclasses.replace(DONE, failure=interruption(KeyboardInterrupt(signal.SIGTERM), 1.0))


@pytest.mark.parametrize(
    ("shown", "why", "headline", "status"),
    [
        ("COMPLETING", "None", "stopped by scancel (Slurm's job 12); the job was ended on every host", 143),
        ("COMPLETING", "TimeLimit", "Slurm ended the allocation 12: TIMEOUT (TimeLimit)", 3),
        ("COMPLETING", "NodeDown", "Slurm ended the allocation 12: NODE_FAIL (NodeDown)", 3),
        ("COMPLETING", "None PreemptTime=2026-11-22T12:00:00", "the allocation 12: PREEMPTED", 3),
        ("RUNNING", "None", "stopped by SIGTERM (15); the job was ended on every host", 143),
    ],
)
def test_a_sigterm_to_the_driver_is_what_slurm_does(
    slurm: Callable[..., None], shown: str, why: str, headline: str, status: int
) -> None:
    slurm(scontrol=SHOW_JOB.format(job=shown, why=why, node="true"))
    failure = blame.blame_slurm(TERM, "12").failure
    assert failure is not None
    assert failure.headline.endswith(headline)
    assert failure.exit_status == status


TAKEN = Failure("allocation", "Slurm ended the allocation 7: PREEMPTED", 3)
LOST = Failure("host", "silent for 10 s: frozen, or cut off from the network", 3, host="n2")


@pytest.mark.parametrize(
    ("failure", "warned", "shows", "goes_on"),
    [
        # Slurm has counted another start, whatever the end looks like here.
        (None, False, "COMPLETING Requeue=1 Restarts=2", True),
        (Failure("interrupted", "SIGTERM (15)", 143), False, "COMPLETING Requeue=1 Restarts=2", True),
        (Failure("rank", "exit status 5", 5), False, "PENDING Requeue=1 Restarts=2", True),
        (Failure("rank", "SIGKILL (9)", 137), False, "REQUEUE_HOLD Requeue=1 Restarts=2", True),
        # It has not, but should: the job has saved, or has lost its hosts.
        (None, True, "RUNNING Requeue=1 Restarts=1", False),
        (Failure("rank", "exit status 75", 75), True, "RUNNING Requeue=1 Restarts=1", True),
        (Failure("rank", "exit status 75", 75), True, "RUNNING Requeue=0 Restarts=1", False),
        (Failure("rank", "exit status 75", 75), False, "RUNNING Requeue=1 Restarts=1", False),
        (Failure("rank", "SIGUSR1 (10)", 138), True, "RUNNING Requeue=1 Restarts=1", False),
        (TAKEN, False, "RUNNING Requeue=1 Restarts=1", True),
        (TAKEN, False, "COMPLETING Requeue=0 Restarts=1", False),
        (LOST, False, "RUNNING Requeue=1 Restarts=1", True),
        (LOST, False, "RUNNING Requeue=0 Restarts=1", False),
        (
            Failure("launcher", "mpirun ended with exit status 0", 1),
            False,
            "RUNNING Requeue=1 Restarts=1",
            True,
        ),
        (Failure("stopped", "muster stop, by ml", 143), False, "RUNNING Requeue=1 Restarts=1", False),
        # The site starts jobs again that end with 40 to 42 or 99.
        (Failure("rank", "exit status 42", 42), False, "RUNNING Requeue=1 Restarts=1", True),
        (Failure("rank", "exit status 99", 99), False, "RUNNING Requeue=1 Restarts=1", True),
        (Failure("rank", "exit status 42", 42), False, "RUNNING Requeue=0 Restarts=1", False),
        # Slurm does not start it again.
        *(
            (Failure("allocation", f"Slurm ended the allocation 7: {end}", 3), False, shows, False)
            for end in ("CANCELLED (Prolog)", "TIMEOUT (TimeLimit)", "DEADLINE", "OUT_OF_MEMORY")
            for shows in ("COMPLETING Requeue=1 Restarts=1", "")
        ),
    ],
)
def test_a_job_continues_if_slurm_starts_it_again_or_should(
    slurm: Callable[..., None], failure: Failure | None, warned: bool, shows: str, goes_on: bool
) -> None:
    config = "RequeueExit = 40-42\\nRequeueExitHold = 99\\n"
    cases = f'"show job") echo "JobId=7 JobState={shows}" ;; "show config") printf "{config}" ;;'
    down = failure is not None and failure.kind in {"host", "launcher", "stopped"}
    slurm(scontrol=f'case "$1 $2" in {cases} esac', srun=f"exit {int(down)}")
    result = dataclasses.replace(FAILED, failure=failure, warned=warned)
    assert batch_main._Start("7", 1).is_followed(result) is goes_on


def test_a_requeue_is_the_next_attempt(slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path) -> None:
    slurm(sbatch="echo 7")
    made = batch_of(job, ["--requeue"], tmp_path / "runs")
    submit(job, made, {"PATH": f"{tmp_path / 'bin'}:/bin"})
    (made.folder / "logs").mkdir()
    (made.folder / "result.json").write_text("{}")
    (made.folder / "metrics.jsonl").write_text('{"epoch": 1}\n')
    run, again = batch_main._begin(made.folder, job, TWO, requeue=True)
    assert again.attempt == 1
    assert run.kept("metrics.jsonl") == '{"epoch": 1}\n'
    assert not (made.folder / "result.json").exists()


def test_a_job_that_cannot_start_says_why_in_its_folder(
    slurm: Callable[..., None], job: LaunchSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm(sbatch="echo 7", scontrol='printf "n1\\n"', squeue="true")
    tell = str(tmp_path / "told")
    wants_more = dataclasses.replace(job, min_hosts=4).having(TellOptions(tell))
    submit(wants_more, made := batch_of(job, [], tmp_path / "runs"), {"PATH": f"{tmp_path / 'bin'}:/bin"})
    environ = {**ON_N1, TELL: tell}
    assert batch_main.drive(TELLS, made.folder, environ) == 2
    found = state(tmp_path / "runs")
    assert (found.state, found.why) == ("failed", "--min-hosts 4: Slurm gave 1 host")
    assert "--min-hosts 4" in (made.folder / "verdict.txt").read_text()
    assert "--min-hosts 4" in capsys.readouterr().err
    told = json.loads((tmp_path / "told").read_text())
    assert (told["job"], told["state"], told["exit_status"], told["hosts"]) == (NAME, "failed", 2, [])
    assert told["first_failure"]["reason"] == "--min-hosts 4: Slurm gave 1 host"
    assert not (made.folder / "batch").exists()


ON_N1 = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "HF_TOKEN": "t", "PIN": "p"}
SAVED = Failure("rank", "exit status 75", 75)


@pytest.mark.parametrize(
    ("end", "shown", "requeued", "goes_on"),
    [
        (dataclasses.replace(FAILED, failure=TAKEN), "JobState=RUNNING Requeue=1", "true", True),
        (dataclasses.replace(FAILED, failure=SAVED, warned=True), "Requeue=1", "true", True),
        (dataclasses.replace(FAILED, failure=SAVED, warned=True), "Requeue=1", "exit 1", False),
        (dataclasses.replace(FAILED, failure=SAVED, warned=True), "Requeue=0", "true", False),
        (FAILED, "JobState=RUNNING Requeue=1", "true", False),
        (KeyboardInterrupt(15), "JobState=COMPLETING Requeue=1 Restarts=1", "true", True),
        (KeyboardInterrupt(15), "JobState=COMPLETING Requeue=1 Restarts=0 Reason=None", "true", False),
        (KeyboardInterrupt(15), "JobState=RUNNING Requeue=1 Restarts=0 Reason=None", "true", False),
    ],
)
def test_only_the_last_end_of_a_job_is_reported_and_removes_its_files(
    slurm: Callable[..., None],
    job: LaunchSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: LaunchResult | KeyboardInterrupt,
    shown: str,
    requeued: str,
    goes_on: bool,
) -> None:
    def run(*_: object) -> LaunchResult:
        if isinstance(end, KeyboardInterrupt):
            raise end
        return end

    told = tmp_path / "told"
    monkeypatch.setattr(batch_main, "Job", lambda *_: SimpleNamespace(run=run))
    cases = f'"show hostnames") echo n1 ;; "show job") echo "JobId=7 {shown}" ;; requeue*) {requeued}'
    slurm(sbatch="echo 7", scontrol=f'case "$1 $2" in {cases} ;; esac')
    job = job.having(TellOptions(str(told)))
    submit(job, made := batch_of(job, ["--requeue"], tmp_path / "runs"), {"PATH": os.environ["PATH"]})
    batch_main.drive(TELLS, made.folder, {**ON_N1, TELL: str(told)})
    assert told.exists() is not goes_on
    assert (made.folder / "batch").exists() is goes_on
