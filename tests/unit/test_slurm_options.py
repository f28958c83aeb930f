"""Options of Slurm with which a launch cannot work, and variables that Slurm's programs must not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.cli.launch import options_for_slurm
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.features.slurm import programs
from muster.deploy.features.slurm.allocation import SrunPipe, command
from muster.deploy.features.slurm.options import Program, options_of, partition_of
from muster.deploy.features.slurm.programs import for_slurm
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
def test_the_partition_of_a_site_that_is_checked_is_the_only_one_of_the_options(
    options: str, partition: str
) -> None:
    assert partition_of(options_of(options)) == partition
