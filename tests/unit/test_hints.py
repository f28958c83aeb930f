"""Hints about options, backends, variables of other launchers, and processes that a rank started."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.hosts.host_sample import HostSample
from muster.deploy.core.job.result import Failure, LaunchResult, RankExit
from muster.deploy.core.plan.launch_plan import PlacedRank
from muster.deploy.core.plan.source_tree import Tree
from muster.deploy.core.plan.spec import Program
from muster.deploy.features.hints.driver import Hints, failed_beside, hint
from tests.unit.attempts import attempt_of
from tests.unit.plans import NODE, make_plan

DONE = LaunchResult(plan=make_plan("node[1-3] slots=2"), started=1.0, ended=2.0, failure=None, ends={})


def hint_about(*tail: str, facts: dict[str, Any] | None = None, **spec: Any) -> str:
    """The hint after a failure of rank 0 on node1 with these last lines."""
    failure = Failure("rank", "exit status 1", 1, host="node1", rank=0, tail=tail)
    plan = make_plan("node[1-3] slots=2", **spec)
    host = dataclasses.replace(NODE, **facts or {})
    return hint(dataclasses.replace(DONE, plan=plan, failure=failure), {"node1": host}, {}, here=True)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("t.py: error: unrecognized arguments: --np 3\n", "--np"),
        ("t.py: error: unrecognized arguments: --stall-timeout=3\n", "--stall-timeout"),
        ("Error: No such option: --np Did you mean --npy?\n", "--np"),
        ("t.py: error: unrecognized arguments: --never-given\n", ""),  # a rank may print anything
        ("t.py: error: argument --np: invalid int value\n", ""),
    ],
)
def test_an_option_of_launch_after_the_script_is_told(line: str, option: str) -> None:
    program = Program(script="t.py", args=("--np", "3", "--stall-timeout=3"))
    said = f"the program got {option}; an option of muster launch stands before the script" if option else ""
    assert hint_about("usage: t.py\n", line, program=program) == said


NO_MPI = (
    "RuntimeError: Distributed package doesn't have MPI built in. MPI is only included if you build PyTorch"
    " from source on a host that has MPI installed.\n"
)
NO_NCCL = "RuntimeError: Distributed package doesn't have NCCL built in\n"
OF_MUSTER = "from muster.train import register_mpi, and init_process_group(register_mpi())"


def test_without_mpi_in_torch_the_backend_of_muster_is_named() -> None:
    said = hint_about(NO_MPI)
    assert said == f"torch 2.6.0 on node1 was built without MPI. Muster's MPI backend: {OF_MUSTER}"
    assert hint_about(NO_MPI, facts={"torch": None, "mpi4py": None}) == (
        f"torch on node1 was built without MPI. Muster's MPI backend: {OF_MUSTER}; it needs mpi4py there"
    )


def test_under_torchrun_both_steps_to_that_backend_are_named() -> None:
    said = hint_about(NO_MPI, launcher="torchrun")
    assert said.endswith(
        f'{OF_MUSTER}, with --launcher mpirun; or, with torchrun, init_process_group("gloo")'
    )


@pytest.mark.parametrize(
    ("line", "gpus", "said"),
    [
        (
            NO_NCCL,
            0,
            "torch 2.6.0 on node1 was built without NCCL, which is for GPUs, and node1 has none: "
            'init_process_group("gloo")',
        ),
        (
            NO_NCCL,
            8,
            "torch 2.6.0 on node1 was built without NCCL: install a build for its 8 GPUs there, "
            'or init_process_group("gloo")',
        ),
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n",
            0,
            'NCCL is for GPUs, and node1 has none: init_process_group("gloo")',
        ),
        (
            "RuntimeError: Distributed package doesn't have XCCL built in\n",
            0,
            'torch 2.6.0 on node1 was built without XCCL; every torch has Gloo: init_process_group("gloo")',
        ),
        ("RuntimeError: Distributed package is fine\n", 0, ""),
    ],
)
def test_without_nccl_the_hint_depends_on_the_gpus_of_the_host(line: str, gpus: int, said: str) -> None:
    assert hint_about(line, facts={"gpus": gpus}) == said


EVERY = "with every launcher Muster sets"


@pytest.mark.parametrize(
    ("launcher", "lines", "said"),
    [
        (
            "torchrun",
            ["KeyError: 'OMPI_COMM_WORLD_RANK'\n"],
            f"only mpirun sets OMPI_COMM_WORLD_RANK; {EVERY} RANK; or add --launcher mpirun",
        ),
        ("mpirun", ["KeyError: 'GROUP_RANK'\n"], "only torchrun sets GROUP_RANK; add --launcher torchrun"),
        (
            "mpirun",
            ["KeyError: 'ROLE_RANK'\n"],
            f"only torchrun sets ROLE_RANK; {EVERY} RANK; or add --launcher torchrun",
        ),
        (
            "mpirun",
            [
                '    local = int(os.environ.get("LOCAL_WORLD_SIZE_")), int(os.getenv("GROUP_RANK"))\n',
                "TypeError: int() argument must be a string or a real number, not 'NoneType'\n",
            ],
            "only torchrun sets GROUP_RANK; add --launcher torchrun",
        ),
        ("torchrun", ["KeyError: 'SLURM_PROCID'\n"], f"only srun sets SLURM_PROCID; {EVERY} RANK"),
        ("torchrun", ["KeyError: 'SLURM_NTASKS_PER_NODE'\n"], "only srun sets SLURM_NTASKS_PER_NODE"),
        (
            "torchrun",
            ["KeyError: 'OMPI_COMM_WORLD_LOCAL_SIZE'\n"],
            "only mpirun sets OMPI_COMM_WORLD_LOCAL_SIZE; "
            f"{EVERY} LOCAL_WORLD_SIZE; or add --launcher mpirun",
        ),
        (
            "torchrun",
            ["KeyError: 'OMPI_COMM_WORLD_NODE_RANK'\n"],
            "only mpirun sets OMPI_COMM_WORLD_NODE_RANK; add --launcher mpirun",
        ),
        ("torchrun", ["KeyError: 'SLURM_LOCALID'\n"], f"only srun sets SLURM_LOCALID; {EVERY} LOCAL_RANK"),
        ("torchrun", ["KeyError: 'PMI_RANK'\n"], f"only MPICH's mpirun sets PMI_RANK; {EVERY} RANK"),
        ("mpirun", ["KeyError: 'OMPI_COMM_WORLD_RANK'\n"], ""),  # it is set: the program removed it
        ("mpirun", ["KeyError: 'ROOT'\n"], ""),
        ("mpirun", ['    print(os.environ.get("GROUP_RANK"))\n', "ValueError: boom\n"], ""),
    ],
)
def test_a_variable_of_another_launcher_is_named_with_it(launcher: str, lines: list[str], said: str) -> None:
    assert hint_about("Traceback\n", *lines, launcher=launcher) == said


CHILD = [
    "Process Process-1:\n",
    "Traceback (most recent call last):\n",
    '  File "train.py", line 5, in worker\n',
    "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE\n",
]


def ended(*ranks: tuple[int, int, Sequence[str]]) -> LaunchResult:
    ends = {
        rank: RankExit(PlacedRank(rank, rank % 2, f"node{rank // 2 + 1}"), code, 1.5, tuple(tail))
        for rank, code, tail in ranks
    }
    return dataclasses.replace(DONE, ends=ends)


def test_a_child_that_failed_while_its_rank_ended_well_is_noted() -> None:
    error = "DistNetworkError: The server socket has failed to listen: EADDRINUSE"
    assert failed_beside(ended((0, 0, CHILD), (1, 0, ["done\n"]))) == (
        f"rank 0 ended with status 0, although a process failed: {error}",
    )
    assert failed_beside(ended((0, 0, CHILD), (1, 0, CHILD), (2, 0, [*CHILD, "done\n"]), (3, 1, CHILD))) == (
        f"ranks 0-2 ended with status 0, although a process failed: {error}",
    )


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Exception in thread Thread-1 (save):", "a thread"),
        ("Exception ignored in atexit callback: <function save at 0x7f>", "an exit function"),
        ("Exception ignored in atexit callback <function save at 0x7f>:", "an exit function"),  # Python 3.14
        ("Error in atexit._run_exitfuncs:", "an exit function"),
    ],
)
def test_a_thread_or_exit_function_that_failed_is_noted_too(line: str, what: str) -> None:
    (note,) = failed_beside(ended((0, 0, [f"{line}\n", *CHILD[1:]])))
    assert note.startswith(
        f"rank 0 ended with status 0, although {what} failed: DistNetworkError: The server"
    )


@pytest.mark.parametrize(
    "tail",
    [
        ["Process Process-1:\n"],
        ["Process Process-1:\n", "step 1\n"],
        ["Traceback (most recent call last):\n", "ValueError: handled\n"],
    ],
)
def test_other_lines_of_a_rank_are_no_failure_of_a_child(tail: list[str]) -> None:
    assert failed_beside(ended((0, 0, tail))) == ()


# ---- full disks -------------------------------------------------------------------------------------------

BUS = (
    "a bus error: a file that the program has mapped became shorter, or its file system had no room: "
    "/dev/shm of node1{} or a disk: muster run --include node1 -- df -h"
)
SHARED = (
    "/dev/shm of node1 is full: muster run --include node1 -- df -h /dev/shm; "
    "data loaders with fewer workers use less, --shm-size of a container makes it larger"
)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/data/x.pt'",
            "the disk of /data/x.pt on node1 is full: muster run --include node1 -- df -h",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "a disk of node1 is full: muster run --include node1 -- df -h",
        ),
        ("RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)", SHARED),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            BUS.format(""),
        ),
        ("OSError: [Errno 2] No such file or directory: '/data/x'", ""),
    ],
)
def test_a_full_disk_is_named_with_the_command_that_shows_it(line: str, said: str) -> None:
    assert hint_about(f"{line}\n") == said


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (
            60 << 20,
            "most likely /dev/shm of node1 was full: 60 MiB of 64 MiB were in use; data loaders with ",
        ),
        (1 << 20, BUS.format(", of which at most 1 MiB of 64 MiB were seen in use,")),
        (None, BUS.format("")),
    ],
)
def test_a_bus_error_names_shared_memory_if_samples_have_seen_it_full(used: int | None, said: str) -> None:
    failure = Failure("rank", "SIGBUS (7)", 135, host="node1", rank=0)
    attempt = attempt_of(DONE.plan)
    feature = Hints()
    feature.begins(attempt)
    for shm in (0, used, 0) if used is not None else ():
        feature.on_event(HostSample(1.0, "node1", shm=shm, shm_total=64 << 20))
        feature.on_event(HostSample(1.0, "node2", shm=64 << 20, shm_total=64 << 20))
    shared = feature.shared
    assert hint(dataclasses.replace(DONE, failure=failure), {}, shared, here=True).startswith(said)


@pytest.mark.parametrize("line", ["bdb.BdbQuit\n", "EOFError: EOF when reading a line\n"])
def test_a_program_that_waits_for_keys_is_shown_how_to_look_into_a_rank(line: str) -> None:
    said = hint_about("(Pdb) \n", line)
    assert {"eval", "stacks", "docs/how-to/editor.md"} <= {*said.split()}, said


@pytest.mark.parametrize(
    "line",
    [
        "fatal: not a git repository (or any of the parent directories): .git\n",
        "subprocess.CalledProcessError: Command '['git', 'log']' returned non-zero exit status 128.\n",
        "git.exc.InvalidGitRepositoryError: /home/ml/.muster/jobs/JOB/code\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'git'\n",
    ],
)
def test_a_program_that_asks_git_for_its_commit_gets_it_from_a_variable(line: str) -> None:
    tree = Tree(Path("/home/ml/project"), ".", (), commit="3f2a" * 10)
    assert 'os.environ["MUSTER_GIT_COMMIT"]' in hint_about(line, tree=tree)
    assert "MUSTER_GIT_COMMIT" not in hint_about(line)
    assert "no .git" in hint_about(line)
    with_commit, without = make_plan("node1 slots=2", tree=tree), make_plan("node1 slots=2")
    assert with_commit.hosts[0].env["MUSTER_GIT_COMMIT"] == "3f2a" * 10
    assert "MUSTER_GIT_COMMIT" not in without.hosts[0].env


def test_a_variable_that_only_this_shell_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    said = hint_about("KeyError: 'WANDB_API_KEY'\n")
    assert (
        said == "this shell has WANDB_API_KEY, and ranks get none of its variables; add --env WANDB_API_KEY"
    )
    assert not hint_about("KeyError: 'WANDB_API_KEY'\n", env=(("WANDB_API_KEY", "other"),))
    monkeypatch.delenv("WANDB_API_KEY")
    assert not hint_about("KeyError: 'WANDB_API_KEY'\n")
