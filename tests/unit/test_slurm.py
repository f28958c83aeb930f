"""Slurm's allocations as hosts, its programs' words, and the step that carries an agent."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest

from muster.deploy.cli import inventory
from muster.deploy.cli.shared import SlurmOptions
from muster.deploy.core.connect.pipe import why_lost
from muster.deploy.core.connect.transports import process
from muster.deploy.core.errors import HostError, MusterError, UnfitError, UsageError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job.result import Failure, RankExit
from muster.deploy.features.slurm import blame, grant, job_state, programs
from muster.deploy.features.slurm.allocation import Allocation, SrunPipe, allocation_of, command
from tests.command_lines import parse
from tests.processes import wait_until_gone
from tests.unit.test_attempts import DONE, FAILED
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # several processes a test

THREE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_PARTITION": "main"}

NOON, DAWN = "2026-11-22T12:00:00", "2026-11-22T06:00:00"


def names(nodelist: str) -> Sequence[str]:
    return {"n[1-3]": ["n1", "n2", "n3"], "n1": ["n1"], "": []}[nodelist]


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({"SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "2(x3)"}, [2, 2, 2]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, [2, 2, 1]),
        ({"SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "1,2,3"}, [1, 2, 3]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)"}, [1, 1, 1]),
        ({}, [1, 1, 1]),
    ],
)
def test_slots_are_tasks(variables: dict[str, str], slots: list[int]) -> None:
    given = allocation_of({**THREE, **variables}, names, lambda job: {})
    assert given == Allocation("12", tuple(Host(f"n{i}", slots=n) for i, n in enumerate(slots, start=1)))


SHOWN = "JobId=12 JobState=RUNNING NodeList=n[1-3] NumNodes=3 JOB_GRES=gpu:4 "
FREE = {"SLURM_TASKS_PER_NODE": "1(x3)"}
TASKS = {**FREE, "SLURM_NTASKS": "3"}


@pytest.mark.parametrize(
    ("groups", "variables", "slots", "gres"),
    [
        ("Nodes=n[1-3] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", FREE, [2, 2, 2], ["gpu:2"] * 3),
        ("Nodes=n[1-3] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)", TASKS, [1, 1, 1], ["gpu:2"] * 3),
        (
            "Nodes=n1 CPU_IDs=0-1 Mem=9 GRES=gpu:h100:2(IDX:0,3),gpu:1g.5gb:1(IDX:4),nvme:2(CNT:2)   "
            "Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)",
            *(FREE, [3, 1, 1], ["gpu:h100:2,gpu:1g.5gb:1,nvme:2", "gpu:1", "gpu:1"]),
        ),
        (
            "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)   Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES=",
            *(FREE, [1, 1, 1], ["gpu:1", "", ""]),
        ),
        ("Nodes=n[1-3] CPU_IDs=0 Mem=0 GRES=", FREE, [1, 1, 1], [None, None, None]),
    ],
)
def test_without_tasks_slots_are_the_gpus_that_slurm_gave_and_steps_name_them(
    slurm: Callable[..., None],
    groups: str,
    variables: dict[str, str],
    slots: list[int],
    gres: list[str | None],
) -> None:
    hostnames = 'case "$3" in "n[1-3]") echo n1 n2 n3 ;; "n[2-3]") echo n2 n3 ;; *) echo "$3" ;; esac'
    slurm(scontrol=f'[ "$2" = job ] && echo "{SHOWN}  {groups} MinCPUsNode=1" || {{ {hostnames}; }}')
    given = grant.own_allocation({**THREE, **variables})
    assert [host.slots for host in given.hosts] == slots
    assert [given.gres.get(host.name) for host in given.hosts] == gres
    for host, each in zip(given.hosts, gres, strict=True):
        named = [word for word in command("12", host, "python3", each) if word.startswith("--gres")]
        assert named == ([] if each is None else [f"--gres={each or 'none'}"])


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        ({}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "1; rm"}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "12"}, "0 hosts in SLURM_JOB_NODELIST"),
        ({**THREE, "SLURM_HET_SIZE": "2"}, "12 is a heterogeneous job"),
        ({**THREE, "SLURM_TASKS_PER_NODE": "2(x2)"}, "does not fit its 3 hosts"),
        ({**THREE, "SLURM_TASKS_PER_NODE": "2(x"}, "does not fit its 3 hosts"),
        ({**THREE, "SLURM_TASKS_PER_NODE": "0(x3)"}, "does not fit its 3 hosts"),
        ({**THREE, "SLURM_TASKS_PER_NODE": "1(x999999)"}, "does not fit its 3 hosts"),
    ],
)
def test_invalid_variables_are_refused(variables: dict[str, str], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong.replace("(", r"\(")):
        allocation_of(variables, names, lambda job: {})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [
                "salloc: error: invalid partition specified: gpu",
                "salloc: error: Job submit/allocate failed: Invalid partition name specified",
            ],
            "invalid partition specified: gpu; Invalid partition name specified",
        ),
        (
            ["salloc: Pending job allocation 7", "salloc: error: Job submit/allocate failed: Access denied"],
            "Access denied",
        ),
        (
            [
                "salloc: You must name an account: -A team",
                "salloc: error: Job submit/allocate failed: Unspecified error",
            ],
            "You must name an account: -A team",
        ),
        (
            [
                "salloc: error: fetch_config: DNS SRV lookup failed",
                "salloc: fatal: Could not establish a configuration source",
            ],
            "Could not establish a configuration source; set SLURM_CONF to the slurm.conf of the site",
        ),
        (
            ["slurm_load_jobs error: Invalid job id specified"],
            "slurm_load_jobs error: Invalid job id specified",
        ),
        (
            ["salloc: Pending job allocation 7", "salloc: Job allocation 7 has been revoked."],
            "Job allocation 7 has been revoked.",
        ),
        (["salloc: unrecognized option '--frob'"], "unrecognized option '--frob'"),
        ([], ""),
    ],
)
def test_a_program_of_slurm_is_quoted_by_its_complaint(lines: list[str], said: str) -> None:
    assert programs.error_of(lines) == said


def test_the_step_of_an_agent_shares_what_the_allocation_has_there() -> None:
    argv = command("12", Host("n2"), "~/my env/bin/python", None)
    assert argv[:2] == ["srun", "--jobid=12"]
    assert {"--nodelist=n2", "--ntasks=1", "--overlap", "--mpi=none", "--cpu-bind=none"} < {*argv}
    assert argv[-3:-1] == ["/bin/sh", "-c"]  # PATH may be empty: sbatch --export=NIL
    assert " exec ~/'my env/bin/python' -c " in argv[-1]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (["--slurm", "-N 2 -t 60", "train.py"], {"--slurm": "-N 2 -t 60", "--script": "train.py"}),
        (["--slurm=-N2", "train.py"], {"--slurm": "-N2", "--script": "train.py"}),
        (["--slurm", "train.py"], {"--slurm": "here", "--script": "train.py"}),
        (["--slurm", "--np", "4", "train.py"], {"--slurm": "here", "--np": 4, "--script": "train.py"}),
        (["--slurm"], {"--slurm": "here"}),
        (["--slurm", "--", "--epochs", "3"], {"--slurm": "here", "--args": "--epochs 3"}),
    ],
)
def test_the_value_of_slurm_may_begin_with_a_dash_or_be_missing(
    line: list[str], read: dict[str, object]
) -> None:
    assert parse(["launch", *line]).values == read


# -- programs of Slurm, as small scripts on PATH --


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put programs of this name and shell text on PATH; without any, there is no Slurm."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(grant, "ASK_SECONDS", 0.05)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def put(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return put


SCONTROL = 'case "$2" in hostnames) printf "n1\\nn2\\n" ;; esac'
GRANT = (
    'echo "salloc: Granted job allocation 7" >&2; shift $(($# - 3)); '
    'SLURM_JOB_ID=7 SLURM_JOB_NODELIST="n[1-2]" SLURM_NTASKS=4 SLURM_TASKS_PER_NODE="2(x2)" "$@"'
)


def test_an_allocation_is_released(slurm: Callable[..., None], tmp_path: Path) -> None:
    slurm(salloc=f"{GRANT}; {RELEASE}; touch {tmp_path}/released", scontrol=SCONTROL)
    with grant.request_allocation(["-N", "2"], {}, lambda line: None, None) as given:
        assert [(host.name, host.slots) for host in given.hosts] == [("n1", 2), ("n2", 2)]
        assert not (tmp_path / "released").exists()
    assert (tmp_path / "released").exists()


def test_an_srun_that_waits_for_a_lost_node_is_ended_with_all_it_started(
    slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CLOSE_SECONDS", 0.1)
    slurm(srun=f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; wait")
    pipe = SrunPipe("7", Host("n1"), "python3", lambda name: "")
    child = tmp_path / "child"
    wait_until(lambda: child.is_file() and child.read_text(), "the child of srun")
    pipe.close()
    wait_until_gone(int(child.read_text()))


@pytest.mark.parametrize(
    ("srun", "reason", "kind", "text"),
    [
        (
            "exit 1",
            "Slurm ended the allocation 7: TIMEOUT",
            "slurm.ended",
            "Slurm ended the allocation 7: TIMEOUT",
        ),
        (
            "echo 'srun: error: Task launch failed: Invalid job id' >&2; exit 1",
            *("", "slurm.step-failed", "srun: error: Task launch failed: Invalid job id"),
        ),
        ("exit 137", "", "agent.killed", "its agent was killed there"),
        (
            "echo 'slurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.0.' >&2; exit 137",
            *("", "agent.killed", "slurmstepd-n1: error: Detected 1 oom_kill event in StepId=7.0."),
        ),
        ("echo 'no such module' >&2; exit 1", "", "python.failed", "status 1: no such module"),
    ],
    ids=["the allocation ended", "no step", "a killed agent", "no memory", "a failed Python"],
)
def test_an_agent_that_ends_leaves_slurms_reason_or_its_own(
    slurm: Callable[..., None], srun: str, reason: str, kind: str, text: str
) -> None:
    slurm(srun=srun)
    lost = SrunPipe("7", Host("n1"), "python3", lambda name: reason).last_words()
    assert lost.kind == kind
    assert text in str(lost)
    assert text in why_lost(lost)  # not that an SSH connection is gone


def test_a_machine_without_srun_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="no srun here: No such file or directory") as refused:
        SrunPipe("7", Host("n1"), "python3", lambda name: "")
    assert refused.value.kind == "slurm.no-srun"


def test_the_reason_to_wait_is_shown_once_and_quoted_after_a_time_out(slurm: Callable[..., None]) -> None:
    slurm(
        salloc='echo "salloc: Pending job allocation 7" >&2; exec sleep 600',
        squeue='echo "PENDING|Resources|2026-11-22T10:00:00"',
        scancel="true",
    )
    told: list[str] = []
    expected = "PENDING (Resources), expected at 2026-11-22T10:00:00"
    with (
        pytest.raises(MusterError, match=r"no hosts within 6 s: PENDING \(Resources\)"),
        grant.request_allocation(["-N", "2"], {}, told.append, 6.0),
    ):
        pass
    assert told == [f"Slurm's job 7 waits: {expected}"]


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ('echo "salloc: error: invalid partition specified: gpu" >&2; exit 1', 2, "invalid partition"),
        ("exit 4", 2, "salloc ended with status 4"),
        (
            'echo "salloc: Pending job allocation 7\nsalloc: Job allocation 7 has been revoked." >&2',
            1,
            r"Slurm's job 7 got no hosts: Job allocation 7 has been revoked\.; NODE_FAIL \(NodeDown\); "
            r"n2 is IDLE\+DRAIN \(Prolog error \[root@x\]\)$",
        ),
    ],
)
def test_a_refusal_quotes_salloc(slurm: Callable[..., None], text: str, status: int, message: str) -> None:
    cases = (
        'job) echo "JobState=NODE_FAIL Reason=NodeDown NodeList=n[1-2]" ;; hostnames) echo n1 n2 ;; node) '
        'case "$4" in n1) echo "State=IDLE" ;; '
        '*) echo "State=IDLE+DRAIN Reason=Prolog error [root@x]" ;; esac'
    )
    slurm(salloc=text, scontrol=f'case "$2" in {cases} ;; esac')
    with (
        pytest.raises(MusterError, match=message) as refused,
        grant.request_allocation(["-p", "gpu"], {}, lambda line: None, None),
    ):
        pass
    assert refused.value.exit_status == status


def test_without_slurm_there_is_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(UsageError, match="login node"),
        grant.request_allocation(["-N2"], {}, lambda line: None, None),
    ):
        pass


def test_a_wrapper_of_salloc_may_print(slurm: Callable[..., None]) -> None:
    noise = 'echo "Welcome to the site"; echo; echo "SLURM_NTASKS=9"; echo "quota: 80 %" >&2'
    slurm(salloc=f"{noise}; {GRANT}; {RELEASE}; echo bye; echo", scontrol=SCONTROL)
    with grant.request_allocation(["-N", "2"], {}, lambda line: None, None) as given:
        assert [(host.name, host.slots) for host in given.hosts] == [("n1", 2), ("n2", 2)]


RELEASE = 'echo "salloc: Relinquishing job allocation 7" >&2'
KEPT = 'echo "salloc: error: Unable to clean up job allocation 7: Unable to contact slurm controller" >&2'
NO_ANSWER = (
    'echo "scancel: error: Kill job error on job id 7: Unable to contact slurm controller" >&2; exit 1'
)


@pytest.mark.parametrize(
    ("end", "scancel", "cancelled", "note"),
    [
        (RELEASE, "true", False, ""),
        (f"{RELEASE}; {KEPT}", "true", True, ""),
        ('echo "salloc: Job allocation 7 has been revoked." >&2', "true", False, ""),
        ("kill -9 $$", "true", True, ""),
        (
            "kill -9 $$",
            'echo "scancel: error: Kill job error on job id 7: Invalid job id" >&2; exit 1',
            True,
            "",
        ),
        (
            f"{RELEASE}; {KEPT}",
            NO_ANSWER,
            True,
            "note: Slurm may still hold the hosts of its job 7 (scancel: ",
        ),
    ],
    ids=["released", "not cleaned up", "revoked", "killed", "over", "no controller"],
)
def test_an_allocation_that_may_remain_is_cancelled_or_named(
    slurm: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    scancel: str,
    cancelled: bool,
    note: str,
) -> None:
    monkeypatch.setattr(grant, "CANCEL_SECONDS", 0.0)
    slurm(salloc=f"{GRANT}; {end}", scontrol=SCONTROL, scancel=f"echo $1 > {tmp_path}/cancelled; {scancel}")
    told: list[str] = []
    with grant.request_allocation(["-N", "2"], {}, told.append, None):
        pass
    assert (tmp_path / "cancelled").exists() is cancelled
    assert "".join(told).startswith(note)
    assert bool(told) is bool(note)
    assert not note or told[0].endswith("when slurmctld answers again, run: scancel 7")


def test_a_failure_after_the_grant_releases_the_hosts(slurm: Callable[..., None], tmp_path: Path) -> None:
    slurm(salloc=f"{GRANT}; {RELEASE}; touch {tmp_path}/released", scontrol="exit 1")
    with (
        pytest.raises(MusterError, match="scontrol: status 1"),
        grant.request_allocation(["-N", "2"], {}, lambda line: None, None),
    ):
        pass
    assert (tmp_path / "released").exists()


@pytest.mark.parametrize(
    ("reason", "nodes", "why"),
    [
        ("PartitionTimeLimit", "1", "a time limit longer than that of the partition (PartitionTimeLimit)"),
        ("PartitionNodeLimit", "9", "more nodes than the partition gives a job (PartitionNodeLimit)"),
        ("PartitionNodeLimit", "5", "more nodes than the partition gives a job (PartitionNodeLimit)"),
        ("PartitionNodeLimit", "4", ""),
        ("InvalidQOS", "1", "the QOS is not valid (InvalidQOS)"),
        ("Resources", "1", ""),
        ("JobHeldUser", "1", ""),
    ],
)
def test_an_endless_wait_is_an_error(slurm: Callable[..., None], reason: str, nodes: str, why: str) -> None:
    cases = (
        f'job) echo "JobState=PENDING Partition=main NumNodes={nodes}" ;; partition) echo "{PARTITION}" ;;'
    )
    slurm(
        salloc='echo "salloc: Pending job allocation 7" >&2; exec sleep 600',
        squeue=f'echo "PENDING|{reason}|N/A"',
        scontrol=f'case "$2" in {cases} esac',
        scancel="true",
    )
    with (
        pytest.raises(MusterError) as refused,
        grant.request_allocation(["-N", nodes], {}, lambda line: None, 2.0),
    ):
        pass
    expected = f"Slurm gave no hosts within 2 s: PENDING ({reason})"
    if why:
        expected = f"--slurm '-N {nodes}': Slurm never gives hosts: {why}"
    assert (str(refused.value), refused.value.exit_status) == (expected, 2 if why else 1)


PARTITION = "PartitionName=main MaxNodes=4 TotalNodes=8"


def test_options_inside_of_an_allocation_are_refused() -> None:
    environ = {"SLURM_JOB_ID": "12"}
    with (
        pytest.raises(UsageError, match="12"),
        grant.request_allocation(["-N2"], environ, lambda line: None, None),
    ):
        pass


NOT_OPTIONS = SlurmOptions(slurm="N 2")


def test_values_that_are_no_options_are_refused() -> None:
    with pytest.raises(UsageError, match="options of salloc"), inventory.allocated(NOT_OPTIONS, None):
        pass


SHOW_JOB = (
    'case "$2" in job) echo "JobId=12 JobState={job} Reason={why} Dependency=(null)" ;; node) {node} ;; esac'
)
NODE_DOWN = 'echo "NodeName=n2 State=DOWN*+NOT_RESPONDING ThreadsPerCore=1 Reason=Not responding [slurm@x]"'
SCANCELLED = "stopped by scancel (Slurm's job 12); the job was ended on every host"
NODE_WELL = 'echo "NodeName=n2 State=ALLOCATED ThreadsPerCore=1"'


@pytest.mark.parametrize(
    ("job", "why", "headline", "status"),
    [
        ("CANCELLED", "None", SCANCELLED, 143),
        ("CANCELLED", "Prolog", "Slurm ended the allocation 12: CANCELLED (Prolog)", 143),
        ("TIMEOUT", "TimeLimit", "Slurm ended the allocation 12: TIMEOUT (TimeLimit)", 3),
        ("NODE_FAIL", "None", "Slurm ended the allocation 12: NODE_FAIL", 3),
        (
            "RUNNING",
            f"None StartTime={NOON} PreemptTime={NOON}",
            "Slurm ended the allocation 12: PREEMPTED",
            3,
        ),
        ("RUNNING", f"None StartTime={NOON} PreemptTime={DAWN}", "rank 3 on node2: exit status 5", 5),
        ("RUNNING", "None PreemptTime=None", "rank 3 on node2: exit status 5", 5),
    ],
)
def test_the_end_of_an_allocation_is_the_failure(
    slurm: Callable[..., None], job: str, why: str, headline: str, status: int
) -> None:
    slurm(scontrol=SHOW_JOB.format(job=job, why=why, node=NODE_WELL))
    failure = blame.blame_slurm(FAILED, "12").failure
    assert failure is not None
    assert (failure.headline, failure.exit_status) == (headline, status)


@pytest.mark.parametrize(
    ("codes", "note"),
    [
        ({3: 0, 0: 0, 2: 0, 1: 0}, "after SIGTERM ranks 0-3 ended in time"),
        ({0: 75, 1: -9}, "after SIGTERM rank 0 ended in time, and Slurm killed ranks 1-3"),
        ({0: -15, 1: -15, 2: -15, 3: -15}, ""),
    ],
)
def test_a_time_limit_names_saved_ranks(slurm: Callable[..., None], codes: dict[int, int], note: str) -> None:
    slurm(scontrol=SHOW_JOB.format(job="TIMEOUT", why="TimeLimit", node=NODE_WELL))
    ranks = DONE.plan.ranks
    ends = {rank: RankExit(ranks[rank], code, 2.0, terminated=True) for rank, code in codes.items()}
    failed = next((end.as_failure() for end in ends.values() if end.code), None)
    result = blame.blame_slurm(dataclasses.replace(DONE, failure=failed, ends=ends), "12")
    assert result.failure is not None
    assert result.failure.headline == "Slurm ended the allocation 12: TIMEOUT (TimeLimit)"
    assert result.notes == (*filter(None, [note]), blame.TIME_LIMIT)


def test_the_end_is_known_while_its_agents_live(slurm: Callable[..., None], tmp_path: Path) -> None:
    """They end when the driver does, and until then Slurm shows COMPLETING."""
    asked = tmp_path / "asked"
    slurm(scontrol=f"echo >> {asked}; " + SHOW_JOB.format(job="COMPLETING", why="None", node=NODE_WELL))
    failure = blame.blame_slurm(FAILED, "12").failure
    assert failure is not None
    assert (failure.headline, asked.read_text()) == (SCANCELLED, "\n")


def test_an_ended_allocation_is_why_all_connections_broke(slurm: Callable[..., None]) -> None:
    slurm(scontrol=SHOW_JOB.format(job="CANCELLED", why="None", node=NODE_WELL))
    broke = Failure("network", "the connections to all 3 hosts broke at about the same time", 1, at=1.0)
    failure = blame.blame_slurm(dataclasses.replace(FAILED, failure=broke), "12").failure
    assert failure is not None
    assert (failure.headline, failure.exit_status) == (SCANCELLED, 143)


def test_the_end_of_an_allocation_is_why_its_hosts_are_unfit(slurm: Callable[..., None]) -> None:
    unfit = UnfitError([("n1", "no such folder"), ("n2", "lost")])
    slurm(scontrol=SHOW_JOB.format(job="CANCELLED", why="None", node=NODE_WELL))
    ended = "Slurm ended the allocation 12: CANCELLED"
    assert blame.blame_for_unfit(unfit, "12").reasons == (("n1", ended), ("n2", ended))
    slurm(scontrol=SHOW_JOB.format(job="RUNNING", why="None", node=NODE_WELL))
    assert blame.blame_for_unfit(unfit, "12") is unfit


def test_a_job_that_is_done_asks_slurm_nothing(slurm: Callable[..., None]) -> None:
    slurm()
    assert blame.blame_slurm(DONE, "12") is DONE


def test_a_lost_host_gets_what_slurm_knows(slurm: Callable[..., None]) -> None:
    slurm(scontrol=SHOW_JOB.format(job="RUNNING", why="None", node=NODE_DOWN))
    lost = dataclasses.replace(DONE, failure=Failure("host", "silent", 3, host="n2"))
    failure = blame.blame_slurm(lost, "12").failure
    assert failure is not None
    assert failure.tail == ("Slurm: n2 is DOWN*+NOT_RESPONDING (Not responding [slurm@x])\n",)
    why = job_state.why_lost("12", 0, "n2")
    assert why == "Slurm's state of the node: DOWN*+NOT_RESPONDING (Not responding [slurm@x])"
    named = dataclasses.replace(DONE, failure=Failure("host", why, 3, host="n2"))
    assert blame.blame_slurm(named, "12") is named  # not twice


@pytest.mark.parametrize(
    ("shows", "end"),
    [
        ("RUNNING Restarts=1", ""),
        ("PENDING Restarts=1", ""),
        ("SUSPENDED Restarts=1", ""),
        ("STOPPED Restarts=1", ""),
        ("RESIZING Restarts=1", ""),
        ("SIGNALING Restarts=1", ""),
        ("COMPLETING Reason=None Restarts=1", "CANCELLED"),
        ("COMPLETING Reason=TimeLimit Restarts=1", "TIMEOUT (TimeLimit)"),
        ("COMPLETING Reason=InactiveLimit Restarts=1", "TIMEOUT (InactiveLimit)"),
        ("COMPLETING Reason=DeadLine Restarts=1", "DEADLINE (DeadLine)"),
        ("COMPLETING Reason=NodeDown Restarts=1", "NODE_FAIL (NodeDown)"),
        ("COMPLETING Reason=OutOfMemory Restarts=1", "OUT_OF_MEMORY (OutOfMemory)"),
        ("COMPLETING Reason=RaisedSignal:9(Killed) Restarts=1", "FAILED (RaisedSignal:9(Killed))"),
        ("COMPLETING Reason=JobLaunchFailure Restarts=1", "FAILED (JobLaunchFailure)"),
        (f"COMPLETING Reason=None StartTime={DAWN} PreemptTime={NOON} Restarts=1", "PREEMPTED"),
        (f"RUNNING Reason=None StartTime={DAWN} PreemptTime={NOON} Restarts=1", "PREEMPTED"),
        (f"RUNNING Reason=None StartTime={NOON} PreemptTime={DAWN} Restarts=1", ""),
        ("BOOT_FAIL Reason=None Restarts=1", "BOOT_FAIL"),
        ("REVOKED Reason=None Restarts=1", "REVOKED"),
        # Slurm has counted another start: scontrol requeue and requeuehold, preemption, a failed node.
        ("COMPLETING Reason=None Restarts=2", "REQUEUED"),
        ("PENDING Reason=BeginTime Restarts=2", "REQUEUED (BeginTime)"),
        ("REQUEUED Reason=None Restarts=2", "REQUEUED"),
        ("REQUEUE_HOLD Reason=JobHeldAdmin Restarts=2", "REQUEUED (JobHeldAdmin)"),
        ("SPECIAL_EXIT Reason=None Restarts=2", "REQUEUED"),
        ("COMPLETING Reason=NodeDown Restarts=2", "NODE_FAIL (NodeDown)"),
        (f"COMPLETING Reason=None StartTime={DAWN} PreemptTime={NOON} Restarts=2", "PREEMPTED"),
    ],
)
def test_states_and_reasons_are_one_end(slurm: Callable[..., None], shows: str, end: str) -> None:
    slurm(scontrol=f'echo "JobId=12 JobState={shows} Dependency=(null)"')
    assert job_state.ended("12", 1) == end
    restarts = job_state.shown("12").fields["Restarts"]
    assert job_state.shown("12").starts_again(1) is (restarts == "2")


@pytest.mark.parametrize(
    ("state", "kind", "suspended"),
    [
        ("SUSPENDED", "host", True),
        ("STOPPED", "network", True),
        ("RUNNING", "host", False),
        ("SUSPENDED", "rank", False),
    ],
)
def test_a_suspended_job_is_why_its_hosts_were_silent(
    slurm: Callable[..., None], state: str, kind: Literal["host", "network", "rank"], suspended: bool
) -> None:
    slurm(scontrol=SHOW_JOB.format(job=state, why="None", node=NODE_WELL))
    lost = dataclasses.replace(DONE, failure=Failure(kind, "silent for 10 s", 3, host="n2", rank=1))
    failure = blame.blame_slurm(lost, "12").failure
    assert failure is not None
    expected = "Slurm suspended the allocation 12 (scontrol suspend), so its agents did not answer"
    assert (failure.headline == expected) is suspended


def test_slurm_that_does_not_answer_changes_no_verdict(slurm: Callable[..., None]) -> None:
    slurm(scontrol='echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    assert blame.blame_slurm(FAILED, "12") is FAILED
    assert job_state.why_lost("12", 0, "n2") == ""
