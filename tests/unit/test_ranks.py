"""Ranks.from_env: a table of environments, captured from the launchers, and what they mean."""

from __future__ import annotations

import pytest

from muster.train.job import slurm
from muster.train.job.failure import TrainError
from muster.train.job.ranks import Ranks, remark


def _torch(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }


def _torchrun(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """torchrun of torch 2.13."""
    return {
        **_torch(rank, size, local_rank, local_size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "38647",
        "TORCHELASTIC_RUN_ID": "5e656200-3959-4fe4-9686-ddb13cd83a4c",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _mpirun(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """mpirun of Open MPI 5.0.11; 4.1 sets the four of OMPI_COMM_WORLD_ alike."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
        "OMPI_UNIVERSE_SIZE": str(size),
        "OMPI_VERSION": "5.0.11",
        "PMIX_RANK": str(rank),
    }


def _hydra(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """mpiexec of MPICH 5.0.2; 4.2.1 leaves PMI_HOSTNAME out."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "PMI_FD": "9",
        "PMI_HOSTNAME": "node1",
        "MPI_LOCALRANKID": str(local_rank),
        "MPI_LOCALNRANKS": str(local_size),
        "HYDI_CONTROL_FD": "7",
    }


INTEL = {  # rank 1 of two, mpirun of Intel MPI 2021.18.1, less 60 variables that name the machine
    "HYDRA_BSTRAP_LAUNCHER": "ssh",
    "HYDRA_BSTRAP_NODE_ID": "0",
    "I_MPI_HYDRA_UUID": "fb4b0000-d2e4-d3c4-c860-0600294c332c",
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}


def _pals(rank: int, size: int, local_rank: int, local_size: int, node: int) -> dict[str, str]:
    """What srun --mpi=cray_shasta of Slurm 24.11.5 sets in the name of Cray's launcher, less srun's own."""
    return {
        "PALS_APID": "26.0",
        "PALS_APINFO": "/var/spool/slurmd/mpi_cray_shasta/26.0/apinfo",
        "PALS_LOCAL_RANKID": str(local_rank),
        "PALS_NODEID": str(node),
        "PALS_RANKID": str(rank),
        "PALS_SPOOL_DIR": "/var/spool/slurmd/mpi_cray_shasta/26.0",
        "PMI_JOBID": "26",
        "PMI_LOCAL_RANK": str(local_rank),
        "PMI_LOCAL_SIZE": str(local_size),
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "PMI_UNIVERSE_SIZE": str(size),
    }


# A batch script of Slurm 24.11.5, before any srun: it looks like the first of four, and is alone.
BATCH = {
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[03-05]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2,1(x2)",
    "SLURM_TASK_PID": "528",
}


def _srun(rank: int, size: int, local_rank: int, node: int, per_node: str) -> dict[str, str]:
    """A step of that job, srun --mpi=none."""
    return {
        **BATCH,
        "OMPI_MCA_plm_slurm_args": "--external-launcher",
        "PRTE_MCA_plm_slurm_args": "--external-launcher",
        "SLURM_LAUNCH_NODE_IPADDR": "172.18.0.2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "35573",
        "SLURM_STEP_NODELIST": "node[03-05]",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
    }


# What srun adds with --mpi=pmix and --mpi=pmi2, for rank 3 of four.
PMIX = {
    "OMPI_MCA_orte_precondition_transports": "0000000200000000-0000000200000000",
    "PMIX_HOSTNAME": "slurm2",
    "PMIX_NAMESPACE": "slurm.pmix.2.0",
    "PMIX_RANK": "3",
    "PMIX_SERVER_TMPDIR": "/var/spool/slurmd/pmix.2.0/",
    "PMIX_VERSION": "5.0.7a1",
}
PMI2 = {"PMI_FD": "18", "PMI_JOBID": "3.0", "PMI_RANK": "3", "PMI_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, Ranks(0, 1, 0, 1, "single"), id="nothing"),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "1"}, Ranks(0, 1, 0, 1, "env"), id="one bare process has its host"
        ),
        pytest.param(
            _mpirun(1, 4, 1, 2) | {"RANK": "1", "WORLD_SIZE": "4"},
            Ranks(1, 4, 1, 2, "mpirun"),
            id="mpirun and two bare names agree",
        ),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2"},
            Ranks(1, 2, 1, 2, "env", ("LOCAL_RANK", "LOCAL_WORLD_SIZE")),
            id="Kubeflow's pod numbers: the ranks must tell each other their hosts",
        ),
        pytest.param(
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            Ranks(3, 4, 3, 4, "env", ("LOCAL_RANK",)),
            id="bare without LOCAL_RANK",
        ),
        pytest.param({"RANK": ""}, Ranks(0, 1, 0, 1, "single"), id="an empty variable is unset"),
        pytest.param(_torchrun(3, 4, 1, 2), Ranks(3, 4, 1, 2, "torchrun"), id="torchrun"),
        pytest.param(_mpirun(5, 6, 1, 2), Ranks(5, 6, 1, 2, "mpirun"), id="mpirun"),
        pytest.param(
            _mpirun(0, 1, 0, 1) | _torchrun(1, 2, 1, 2),
            Ranks(1, 2, 1, 2, "torchrun"),
            id="mpirun -np 1 torchrun",
        ),
        pytest.param(
            _mpirun(1, 2, 0, 1) | _torchrun(2, 4, 0, 2),
            Ranks(2, 4, 0, 2, "torchrun"),
            id="mpirun with one torchrun per host",
        ),
        pytest.param(_torch(1, 4, 1, 2), Ranks(1, 4, 1, 2, "env"), id="bare"),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            Ranks(1, 4, 1, 4, "env", ("LOCAL_WORLD_SIZE",)),
            id="bare without LOCAL_WORLD_SIZE",
        ),
        pytest.param(_mpirun(1, 4, 1, 2) | _torch(1, 4, 1, 2), Ranks(1, 4, 1, 2, "mpirun"), id="both agree"),
        pytest.param(
            _mpirun(0, 1, 0, 1) | _torch(0, 1, 0, 1), Ranks(0, 1, 0, 1, "mpirun"), id="both agree on one rank"
        ),
        pytest.param(
            _mpirun(0, 1, 0, 1) | _torch(1, 4, 1, 2), Ranks(1, 4, 1, 2, "env"), id="bare inside mpirun -np 1"
        ),
        pytest.param(_hydra(3, 4, 1, 2), Ranks(3, 4, 1, 2, "hydra"), id="MPICH"),
        pytest.param(INTEL, Ranks(1, 2, 1, 2, "hydra"), id="Intel MPI"),
        pytest.param(_srun(4, 5, 0, 2, "2(x2),1"), Ranks(4, 5, 0, 1, "srun"), id="srun, unequal hosts"),
        pytest.param(_srun(3, 5, 1, 1, "2(x2),1"), Ranks(3, 5, 1, 2, "srun"), id="srun, a host of two"),
        pytest.param(BATCH, Ranks(0, 1, 0, 1, "single"), id="a Slurm batch script is one process"),
        pytest.param(
            BATCH | _mpirun(3, 4, 1, 2), Ranks(3, 4, 1, 2, "mpirun"), id="mpirun in a batch script, head"
        ),
        pytest.param(
            # Open MPI starts its daemons on the other hosts as a Slurm step, one task per host.
            _srun(0, 2, 0, 0, "1(x2)") | _mpirun(3, 4, 1, 2),
            Ranks(3, 4, 1, 2, "mpirun"),
            id="mpirun in a batch script, another host",
        ),
        pytest.param(
            _srun(1, 2, 0, 1, "1(x2)") | _torchrun(3, 4, 1, 2),
            Ranks(3, 4, 1, 2, "torchrun"),
            id="srun with one torchrun per host",
        ),
        pytest.param(
            _srun(3, 4, 1, 1, "2(x2)") | PMI2,
            Ranks(3, 4, 1, 2, "srun"),
            id="srun --mpi=pmi2: PMI without local ranks is no family",
        ),
        pytest.param(
            _srun(3, 4, 1, 1, "2(x2)") | PMIX | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            Ranks(3, 4, 1, 2, "srun"),
            id="srun by muster launch, which adds the bare names",
        ),
        pytest.param(_srun(3, 4, 1, 1, "2(x2)") | PMIX, Ranks(3, 4, 1, 2, "srun"), id="srun --mpi=pmix"),
        pytest.param(
            _srun(3, 4, 1, 1, "2(x2)") | _pals(3, 4, 1, 2, 1),
            Ranks(3, 4, 1, 2, "srun"),
            id="srun --mpi=cray_shasta",
        ),
        pytest.param(
            # Hydra starts its proxies as a Slurm step, one task per host.
            _srun(1, 2, 0, 1, "1(x2)") | {"HYDRA_BOOTSTRAP": "slurm"} | _hydra(3, 4, 1, 2),
            Ranks(3, 4, 1, 2, "hydra"),
            id="MPICH's mpirun in a Slurm job",
        ),
        pytest.param(
            _hydra(0, 1, 0, 1) | _torchrun(1, 2, 1, 2), Ranks(1, 2, 1, 2, "torchrun"), id="mpiexec torchrun"
        ),
    ],
)
def test_the_environment_says_who_this_process_is(environ: dict[str, str], expected: Ranks) -> None:
    assert Ranks.from_env(environ) == expected


@pytest.mark.parametrize(
    ("environ", "on_host", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4"}, [1, 3], Ranks(3, 4, 1, 2, "env")),
        ({"RANK": "3", "WORLD_SIZE": "4"}, [3], Ranks(3, 4, 0, 1, "env")),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, [1, 3], Ranks(3, 4, 0, 2, "env")),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, [1, 3], Ranks(3, 4, 1, 4, "env")),
    ],
)
def test_the_ranks_of_a_host_fill_in(environ: dict[str, str], on_host: list[int], expected: Ranks) -> None:
    assert Ranks.from_env(environ).on_host(on_host) == expected


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("mpirun", Ranks(1, 2, 1, 2, "mpirun")),
        ("env", Ranks(0, 4, 0, 4, "env", ("LOCAL_WORLD_SIZE",))),
        ("single", Ranks(0, 1, 0, 1, "single")),
    ],
)
def test_a_named_launcher_settles_a_contradiction(launcher: str, expected: Ranks) -> None:
    environ = _mpirun(1, 2, 1, 2) | {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    assert Ranks.from_env(environ, launcher) == expected


def test_a_named_launcher_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TrainError, match=r"launched by hydra\? none of its variables set without PMI_RANK"):
        Ranks.from_env(_mpirun(0, 2, 0, 2), "hydra")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (BATCH, "no step of its job; use srun or mpirun"),
        (_mpirun(0, 1, 0, 1) | _torchrun(1, 2, 1, 2), "inherited from mpirun is ignored"),
        (_srun(1, 2, 0, 1, "1(x2)") | _torchrun(3, 4, 1, 2), "inherited from srun is ignored"),
    ],
)
def test_what_may_surprise_is_said(environ: dict[str, str], says: str) -> None:
    assert says in (remark(environ, Ranks.from_env(environ)) or "")


def test_what_is_as_expected_needs_no_remark() -> None:
    for environ in ({}, _torchrun(1, 2, 1, 2), _mpirun(1, 2, 1, 2), _srun(1, 4, 1, 0, "2(x2)")):
        assert remark(environ, Ranks.from_env(environ)) is None


@pytest.mark.parametrize(
    ("hostlist", "first"),
    [
        ("node3", "node3"),
        ("node3,node4", "node3"),
        ("node[03-05,7],login1", "node03"),
        ("rack[2-3]node[08,11]", "rack2node08"),
        ("node[1-2]-ib,x", "node1-ib"),
    ],
)
def test_the_first_host_of_a_slurm_hostlist(hostlist: str, first: str) -> None:
    assert slurm.first_host(hostlist) == first


def test_the_tasks_of_a_slurm_step_meet_where_all_can_work_out() -> None:
    places = {slurm.rendezvous_address(_srun(rank, 2, 0, rank, "1(x2)")) for rank in range(2)}
    assert places == {("node03", 20000 + (4711 * 8) % 10000)}
    with pytest.raises(TrainError, match="set MASTER_ADDR and MASTER_PORT"):
        slurm.rendezvous_address(BATCH)


def _without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param(
            _without(_torchrun(0, 2, 0, 2), "LOCAL_RANK"), "without LOCAL_RANK", id="torchrun's is incomplete"
        ),
        pytest.param(
            _without(_mpirun(0, 2, 0, 2), "OMPI_COMM_WORLD_SIZE"),
            "without OMPI_COMM_WORLD_SIZE",
            id="mpirun's is incomplete",
        ),
        pytest.param({"WORLD_SIZE": "2"}, "WORLD_SIZE set without RANK", id="a size alone"),
        pytest.param({"LOCAL_RANK": "1"}, "LOCAL_RANK set without RANK", id="a local rank alone"),
        pytest.param(
            {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-node1-17@1"},
            "(?s)PMIX_RANK=3: .* not say of how many.*mpirun, torchrun or srun",
            id="PMIx has no size",
        ),
        *(
            pytest.param({name: "0"}, f"{name}=0", id=f"a launcher that is not read: {name}")
            for name in ("PALS_RANKID", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK")
        ),
        pytest.param(
            _without(_srun(1, 2, 0, 1, "1(x2)"), "SLURM_LOCALID"),
            "SLURM_STEP_TASKS_PER_NODE set without SLURM_LOCALID",
            id="a step of two tasks with a variable less is not one process",
        ),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "x"}, "LOCAL_RANK='x'", id="a bare local rank"
        ),
        pytest.param(
            _mpirun(0, 2, 0, 2) | {"OMPI_COMM_WORLD_RANK": "first"},
            "OMPI_COMM_WORLD_RANK='first'",
            id="not a number",
        ),
        pytest.param(_torch(4, 4, 0, 1), "rank 4 of 4", id="a rank beyond the last"),
        pytest.param(_torch(-1, 4, 0, 1), "rank -1 of 4", id="a negative rank"),
        pytest.param(
            _mpirun(1, 2, 1, 2) | _torch(0, 2, 0, 2),
            "mpirun says rank 1 of 2, local rank 1 of 2, but .* say rank 0 of 2, local rank 0 of 2",
            id="mpirun and bare variables disagree",
        ),
        pytest.param(
            _hydra(1, 2, 1, 2) | _torch(0, 2, 0, 2),
            "(?s)hydra says .*--launcher hydra",
            id="hydra and bare too",
        ),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "2"}, "without MPI_LOCALRANKID", id="half of Hydra's"),
        pytest.param(
            _srun(0, 2, 0, 0, "some"), "SLURM_STEP_TASKS_PER_NODE='some'", id="a count that is none"
        ),
    ],
)
def test_an_environment_that_names_no_process_is_an_error(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TrainError, match=words):
        Ranks.from_env(environ)
