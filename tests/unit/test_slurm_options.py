"""Options of Slurm with which a launch cannot work, and variables that Slurm's programs must not read."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from muster.deploy.cli.dispatch import main
from muster.deploy.cli.inventory import with_source
from muster.deploy.cli.launch import options_for_slurm
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.cli.shared import THIS_ALLOCATION
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.features.slurm import programs
from muster.deploy.features.slurm.allocation import SrunPipe, command
from muster.deploy.features.slurm.options import Program, options_of, partition_of
from muster.deploy.features.slurm.programs import (
    NodeGroup,
    SlurmSite,
    for_slurm,
    judge_site,
    parse_config,
    parse_groups,
)
from tests.slurm import put_programs


@pytest.mark.parametrize("program", ["salloc", "sbatch"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-N 1 : -N 2", "':': heterogeneous jobs are not supported"),
        ("-N 2 --help", "'--help': it only prints a text; use {program} itself for that"),
        ("-h", "'-h': it only prints a text"),
        ("-V", "'-V': it only prints a text"),
        ("--usage", "'--usage': it only prints a text"),
        ("-N 2 hostname", "'hostname': no option of {program}"),
        ("-N2 --exclusive=user hostname", "'hostname': no option of {program}"),
        ("-N2 -- hostname", "'--': no option of {program}"),
        ("-N2 --signal=TERM@60", "'--signal=TERM@60': "),
        ("-N2 --signal R:9", "'--signal': "),
        ("2", "give options of {program}"),
        ("-N '2", "No closing quotation"),
    ],
)
def test_what_neither_program_can_do_for_a_launch_is_refused(program: Program, words: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        options_of(words, program)
    assert str(refused.value).startswith(f"--slurm {words!r}: {said.format(program=program)}")


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("salloc", "-N2 --no-shell", "'--no-shell': the allocation would stay"),
        ("salloc", "-QN2", "'-QN2': Muster reads the number of the job"),
        ("salloc", "-N2 --signal=B:USR1@60", "only a batch job has a script that gets the signal"),
        ("salloc", "-N2 --signal=HUP@60", "which only USR1 and USR2 do not end"),
        ("sbatch", "-N2 --array=1-4", "'--array=1-4': each task of the array would write to the same folder"),
        ("sbatch", "-N2 -a 1-4", "'-a': each task"),
        ("sbatch", "-N2 --signal=USR1@300", "write --signal=B:USR1@300"),
        ("sbatch", "-N2 --signal R:USR1", "write --signal=B:R:USR1"),
        ("sbatch", "-N2 -W", "'-W': --detach returns at once"),
        ("sbatch", "-N2 --test-only", "'--test-only': Slurm would start no job"),
        ("sbatch", "-N2 --wrap 'sleep 1'", "'--wrap': the command of the job is the program"),
    ],
)
def test_what_one_program_cannot_do_for_a_launch_is_refused(program: Program, words: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        options_of(words, program)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("salloc", "-N 3 --ntasks-per-node 2 -p gpu -t 60"),
        ("salloc", "-HN 2 -I60 --exclusive=user -w node1,node2 --no-kill -C 'a&b' --gres gpu:2"),
        ("salloc", "-N2 --signal=USR1@60"),
        ("salloc", "-N2 --signal R:SIGUSR2"),
        ("salloc", "-N2 --signal 10@300"),
        ("salloc", "-N2 --begin now+1hour --comment ':' --wait-all-nodes 1"),
        ("sbatch", "-N 2 -t 600 --requeue --signal=B:USR1@300 --open-mode append"),
        ("sbatch", "-N2 --signal=BR:TERM@10 -A team --mail-type ALL -J name"),
    ],
)
def test_other_options_pass(program: Program, words: str) -> None:
    assert " ".join(options_of(words, program)) == words.replace("'", "")


def test_a_batch_job_takes_the_options_of_sbatch() -> None:
    with pytest.raises(UsageError, match="--array"):
        options_for_slurm(LaunchOptions(slurm="-N2 --array=1-2", detach=True))


# The variables of a user's shell that change what Slurm's programs do.
OF_USER = {
    **{
        "SLURM_EXPORT_ENV": "NONE",
        "SRUN_EXPORT_ENV": "NONE",
        "SLURM_LABELIO": "1",
        "SLURM_STDOUTMODE": "all",
    },
    **{"SLURM_CPU_BIND": "quiet,map_cpu:0", "SLURM_DEBUG": "2", "SLURM_NTASKS": "9", "SRUN_OUTPUT": "/tmp/x"},
    **{"SLURM_TIME_FORMAT": "relative", "SQUEUE_FORMAT2": "JobID", "SQUEUE_STATES": "PD", "PMI_FANOUT": "1"},
    **{"SLURMD_DEBUG": "4", "SCANCEL_INTERACTIVE": "1", "SBATCH_EXPORT": "NONE", "SBATCH_ARRAY_INX": "1-2"},
    **{"SBATCH_WAIT": "1", "SALLOC_KILL_CMD": "9", "SINFO_FORMAT": "%n", "SLURM_WAIT": "1"},
}
OF_SITE = {"SLURM_CONF": "/site/slurm.conf", "SLURM_JWT": "t", "SALLOC_PARTITION": "a", "SBATCH_ACCOUNT": "b"}


def test_options_in_variables_are_not_passed_on_but_the_site_is() -> None:
    assert for_slurm({**OF_USER, **OF_SITE, "PATH": "/bin", "LD_PRELOAD": "x"}) == {
        **OF_SITE,
        **{"PATH": "/bin", "LD_PRELOAD": "x"},
    }


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment that a program of Slurm writes."""
    text = f"env > {tmp_path}/env"
    put_programs(tmp_path / "bin", srun=text, scontrol=text)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name, value in {**OF_USER, **OF_SITE}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "env"


def names_in(file: Path) -> set[str]:
    return {line.partition("=")[0] for line in file.read_text().splitlines()}


def test_the_step_of_an_agent_reads_no_variable_of_the_user(seen: Path) -> None:
    pipe = SrunPipe("7", Host("n1"), "python3", lambda name: "")
    pipe.close()
    assert not names_in(seen) & OF_USER.keys()
    assert names_in(seen) >= OF_SITE.keys()
    assert "--export=ALL" in command("7", Host("n1"), "python3", None)


def test_a_question_to_slurm_reads_no_variable_of_the_user(seen: Path) -> None:
    programs.ask("scontrol", "ping")
    assert not names_in(seen) & OF_USER.keys()


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        *[
            ("-p gpu", "gpu"),
            ("-pgpu -N 2", "gpu"),
            ("--partition=gpu", "gpu"),
            ("-N 2 --partition gpu", "gpu"),
        ],
        *[("-N 2", ""), ("-p gpu,cpu", ""), ("-N 2 -p", "")],
    ],
)
def test_the_checked_partition_is_that_of_the_options(options: str, partition: str) -> None:
    assert partition_of(options_of(options)) == partition


# -- what `muster launch --slurm` decides before Slurm is asked for hosts --


MISTAKES = {
    "none.py": "script none.py: no such file",
    "--max-log 5X a.py": "--max-log 5X: write a number of bytes",
    "--backend x a.py": "muster launch: --backend x: must be one of",
    "--env 1=2 a.py": "--env 1=2: write NAME=value",
    "--network 10.0.0.0/99 a.py": "--network 10.0.0.0/99",
    "--slots many a.py": "--slots many: write gpus",
    "--np 2 --rank 2 a.py": "--rank 2: the job has the ranks 0 to 1",
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that salloc writes, which then refuses."""
    marker = tmp_path / "asked"
    put_programs(tmp_path / "bin", salloc=f"touch {marker}; echo 'salloc: error: full' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").touch()
    monkeypatch.chdir(tmp_path / "project")
    return marker


@pytest.mark.parametrize(("words", "said"), MISTAKES.items())
def test_a_mistake_is_reported_before_slurm_is_asked_for_hosts(
    asked: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--slurm", "-N 2", *shlex.split(words)])
    assert (end.value.code, asked.exists()) == (2, False)
    assert capsys.readouterr().err.startswith(said)


def test_slurm_is_asked_where_nothing_is_wrong(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--slurm", "-N 2", "a.py"])
    assert (end.value.code, asked.exists()) == (2, True)
    assert capsys.readouterr().err == "--slurm '-N 2': full\n"


@pytest.mark.parametrize(
    ("job", "options", "hosts_file", "slurm"),
    [
        ("5", LaunchOptions(), False, THIS_ALLOCATION),
        ("5", LaunchOptions(include="n1"), False, THIS_ALLOCATION),
        ("5", LaunchOptions(slurm="none"), False, ""),
        ("5", LaunchOptions(slurm="-N 2"), False, "-N 2"),
        ("5", LaunchOptions(hosts="other.txt"), False, ""),
        ("5", LaunchOptions(), True, ""),
        ("", LaunchOptions(), False, ""),
    ],
)
def test_a_launch_without_hosts_uses_the_allocation_around_it(
    asked: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    options: LaunchOptions,
    hosts_file: bool,
    slurm: str,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    if hosts_file:
        Path("hosts.txt").write_text("n1\n")
    assert with_source(options).slurm == slurm


@pytest.mark.parametrize("command", ["launch a.py", "check", "bench links"])
def test_the_hosts_are_those_of_the_allocation(
    asked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    put_programs(asked.parent / "bin", scontrol="echo 'scontrol: error: asked for the hosts' >&2; exit 1")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with pytest.raises(SystemExit):
        main(command.split())
    out, err = capsys.readouterr()
    assert err.startswith("note: the hosts are those of Slurm's allocation 5; --slurm=none goes without it\n")
    assert "scontrol: asked for the hosts" in out + err


# -- Slurm sites that are wrong in some way, from what their programs print --


CONFIG = parse_config(
    """Configuration data as of 2026-11-22T09:00:00
SLURM_VERSION           = 24.11.5
GresTypes               = (null)
"""
)
GROUPS = parse_groups("main|up|3|idle|none\nshort|up|1|mixed|none\nshort|up|2|idle|none\n")
WELL = SlurmSite(config=CONFIG, groups=GROUPS)


def site(partition: str = "", groups: str = "", **settings: str) -> SlurmSite:
    return SlurmSite(
        config={**CONFIG, **settings}, groups=parse_groups(groups) if groups else GROUPS, partition=partition
    )


def test_a_site_that_is_well_has_no_findings() -> None:
    assert judge_site(WELL) == ()
    assert CONFIG["grestypes"] == ""
    assert GROUPS[0] == NodeGroup("main", True, 3, "idle", "")


@pytest.mark.parametrize(
    ("broken", "findings"),
    [
        (SlurmSite(error="scontrol: Unable to contact slurm controller"), {"slurm.no-controller": "error"}),
        (site(partition="gpu"), {"slurm.no-partition": "error"}),
        (site("main", "main|down|3|idle|none"), {"slurm.partition-closed": "error"}),
        (site(groups="main|up|3|idle|none\nold|down|3|idle|none"), {"slurm.partition-closed": "warning"}),
        (
            site(groups="main|up|2|idle|none\nmain|up|1|drained*|bad disk | replaced"),
            {"slurm.nodes-unusable": "warning"},
        ),
        (
            site(groups="main|up|3|down*|Not responding"),
            {"slurm.nodes-unusable": "warning", "slurm.no-nodes": "error"},
        ),
        (site(slurm_version="19.05.8"), {"slurm.too-old": "error"}),
    ],
)
def test_each_defect_of_a_site_is_named_and_nothing_else(broken: SlurmSite, findings: dict[str, str]) -> None:
    judged = judge_site(broken)
    assert {finding.id: finding.severity for finding in judged} == findings
    assert all(finding.text and finding.remedy for finding in judged)


def test_a_reason_with_a_bar_is_kept() -> None:
    (group,) = parse_groups("main|up|1|drained*|bad disk | replaced")
    assert group.reason == "bad disk | replaced"
