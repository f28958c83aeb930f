"""Ranks.from_env: a table of environments, captured from the launchers, and what they mean."""

from __future__ import annotations

import pytest

from train.errors import TrainError
from train.ranks import Ranks


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


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, Ranks(0, 1, 0, 1, "single"), id="nothing"),
        pytest.param({"PMIX_RANK": "3"}, Ranks(0, 1, 0, 1, "single"), id="PMIx has no size"),
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
            Ranks(1, 4, 1, 4, "env"),
            id="bare without LOCAL_WORLD_SIZE",
        ),
        pytest.param(_mpirun(1, 4, 1, 2) | _torch(1, 4, 1, 2), Ranks(1, 4, 1, 2, "mpirun"), id="both agree"),
        pytest.param(
            _mpirun(0, 1, 0, 1) | _torch(0, 1, 0, 1), Ranks(0, 1, 0, 1, "mpirun"), id="both agree on one rank"
        ),
        pytest.param(
            _mpirun(0, 1, 0, 1) | _torch(1, 4, 1, 2), Ranks(1, 4, 1, 2, "env"), id="bare inside mpirun -np 1"
        ),
    ],
)
def test_the_environment_says_who_this_process_is(environ: dict[str, str], expected: Ranks) -> None:
    assert Ranks.from_env(environ) == expected


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
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2"},
            "RANK, WORLD_SIZE set without LOCAL_RANK",
            id="Kubeflow's pod numbers",
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
    ],
)
def test_an_environment_that_names_no_process_is_an_error(environ: dict[str, str], words: str) -> None:
    with pytest.raises(TrainError, match=words):
        Ranks.from_env(environ)
