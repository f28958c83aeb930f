"""The ranks of a job find each other, wherever the rendezvous is, or say why not."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed import TCPStore
from torch.multiprocessing.spawn import start_processes

from muster.train.job import rendezvous
from muster.train.job.failure import TrainError
from muster.train.job.group import process_group
from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from tests.train.conftest import TIME_LIMIT, free_port

if TYPE_CHECKING:
    from tests.train.conftest import Launch

MEETING_PLACES = str(Path(__file__).with_name("meeting_places.py"))
# In one job, as each rank of it spends seconds to import torch.
ANY_WORLD_SIZE = sorted(str(path) for path in Path(__file__).parent.glob("test_*any_world_size.py"))
FIRST, SECOND = Ranks(0, 2, 0, 2, "env"), Ranks(1, 2, 1, 2, "env")
SHORT = timedelta(seconds=0.5)


def test_the_same_ranks_meet_at_every_kind_of_place(launch: Launch, tmp_path: Path) -> None:
    places = ("mpi://", f"file://{tmp_path}/meeting", f"tcp://127.0.0.1:{free_port()}", "auto")
    job = launch("mpirun", 2, MEETING_PLACES, *places)
    assert job.status == 0, job.stderr
    assert job.stdout.splitlines() == [f"2 ranks met at {place}" for place in places]
    assert list(tmp_path.iterdir()) == []


def test_what_holds_at_any_world_size_holds_on_three_ranks(launch: Launch) -> None:
    """Under mpirun, which has strategies of its own."""
    job = launch("mpirun", 3, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ANY_WORLD_SIZE)
    assert job.status == 0, job.stdout + job.stderr
    assert job.stdout.count(" passed") == 3  # each rank is a pytest


@pytest.mark.parametrize("init", ["env://", "tcp://127.0.0.1:PORT"])
def test_rank_0_listens_at_the_address_of_the_rendezvous_alone(init: str) -> None:
    port = free_port()
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    patient = timedelta(seconds=TIME_LIMIT)
    with rendezvous_store(init.replace("PORT", str(port)), FIRST, patient, environ) as store:
        store.set("key", "value")
        socket.create_connection(("127.0.0.1", port), TIME_LIMIT).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), TIME_LIMIT)


def test_a_second_group_of_rank_0_shares_the_port_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in environ.items():  # torch reads them on its own
        monkeypatch.setenv(name, value)
    patient = timedelta(seconds=TIME_LIMIT)

    def join(ranks: Ranks) -> None:
        with rendezvous_store("env://", ranks, patient, environ):
            pass

    with rendezvous_store("env://", FIRST, patient, environ):
        others = [threading.Thread(target=join, args=(ranks,)) for ranks in (FIRST, SECOND)]
        for other in others:
            other.start()
        for other in others:
            other.join(TIME_LIMIT)
            assert not other.is_alive()


@pytest.mark.parametrize("host", ["localhost", "192.0.2.1"])
def test_a_name_and_an_address_of_another_host_are_left_to_torch(host: str) -> None:
    assert rendezvous._listen_at(host, free_port()) is None


def test_two_processes_that_are_the_same_rank_both_say_so(capfd: pytest.CaptureFixture[str]) -> None:
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
    place = f"tcp://127.0.0.1:{store.port}"

    def join(_: int) -> None:
        torch.set_num_threads(1)
        told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        with process_group(backend="gloo", init=place, environ=told):
            pass

    ends = start_processes(join, nprocs=2, start_method="fork", join=False)  # type: ignore[no-untyped-call]
    for process in ends.processes:
        process.join(TIME_LIMIT)
        assert process.exitcode == 2
    said = capfd.readouterr().err
    assert said.count("error: rank 1 exists more than once:\n") == 2
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("init", "environ", "says"),
    [
        ("udp://1.2.3.4:5", {}, "--init must be auto, env://"),
        ("tcp://1.2.3.4", {}, "--init must be tcp://HOST:PORT"),
        ("tcp://1.2.3.4:many", {}, "--init must be tcp://HOST:PORT"),
        ("file:///no/such/folder/f", {}, "needs a path in a folder that exists"),
        ("env://", {"MASTER_ADDR": "127.0.0.1"}, "--init env:// needs MASTER_PORT"),
        ("env://", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT must be from 1 to 65535"),
        ("auto", {"MASTER_ADDR": "127.0.0.1"}, "set both MASTER_ADDR"),
        ("auto", {}, "or use --init"),
    ],
)
def test_a_place_that_is_none_is_a_clear_error(init: str, environ: dict[str, str], says: str) -> None:
    with pytest.raises(TrainError, match=says), rendezvous_store(init, FIRST, SHORT, environ):
        pass


@pytest.mark.parametrize("init", ["env://", "tcp://127.0.0.1:{port}"])
def test_a_rank_that_finds_nobody_says_so_in_two_lines(init: str) -> None:
    port = free_port()
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with (
        pytest.raises(TrainError) as error,
        rendezvous_store(init.format(port=port), SECOND, timedelta(seconds=1), environ),
    ):
        pass
    assert str(error.value).splitlines() == [
        f"rank 1 of 2, local rank 1 of 2: nothing listens at 127.0.0.1 port {port}, tried for 1 s: "
        "Connection refused",
        "was rank 0 started, and is this its address?",
    ]


def test_a_file_that_an_earlier_run_left_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meeting").touch()
    with (
        pytest.raises(TrainError, match="exists already: left by an earlier run"),
        rendezvous_store(f"file://{tmp_path}/meeting", FIRST, SHORT, {}),
    ):
        pass


def test_a_file_is_new_for_every_run_and_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "meeting.job-7").touch()
    with rendezvous_store(f"file://{tmp_path}/meeting", FIRST, SHORT, {"MUSTER_JOB": "job-8"}):
        assert (tmp_path / "meeting.job-8").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["meeting.job-7"]


def test_the_file_is_the_same_on_every_host_of_an_mpirun_in_a_batch_job(tmp_path: Path) -> None:
    """The first host's ranks are of the batch script, the others' of the step that mpirun's daemons are."""
    batch = {"PMIX_NAMESPACE": "prterun-node1@1", "SLURM_JOB_ID": "7"}
    first, second = Ranks(0, 2, 0, 1, "mpirun"), Ranks(1, 2, 0, 1, "mpirun")
    place = f"file://{tmp_path}/meeting"
    with (
        rendezvous_store(place, first, SHORT, batch),
        rendezvous_store(place, second, SHORT, {**batch, "SLURM_STEP_ID": "0"}),
    ):
        assert [path.name for path in tmp_path.iterdir()] == ["meeting.prterun-node1-1.7"]


def test_the_steps_of_one_batch_job_have_files_of_their_own(tmp_path: Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
    with rendezvous_store(f"file://{tmp_path}/meeting", Ranks(0, 2, 0, 1, "srun"), SHORT, step):
        assert (tmp_path / "meeting.7.1").exists()


def test_a_rank_that_has_left_does_not_bring_the_file_back(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/meeting"
    with (
        rendezvous_store(place, FIRST, SHORT, {}),
        rendezvous_store(place, Ranks(1, 2, 1, 2, "env"), SHORT, {}) as left,
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "meeting").touch()  # of the next run, or gone only while a store is looking
    del left
    assert (tmp_path / "meeting").read_bytes() == b""


def test_a_rank_names_the_file_that_it_waited_for(tmp_path: Path) -> None:
    second = Ranks(1, 2, 1, 2, "env")
    with (
        pytest.raises(TrainError, match="do all hosts share that folder"),
        rendezvous_store(f"file://{tmp_path}/meeting", second, SHORT, {}),
    ):
        pass


def test_ranks_that_are_told_no_local_numbers_find_them_out(tmp_path: Path) -> None:
    """RANK and WORLD_SIZE alone, as in the pods of Kubeflow: here both are on one host."""
    place = f"tcp://127.0.0.1:{free_port()}"

    def join(rank: int) -> None:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        told = {"RANK": str(rank), "WORLD_SIZE": "2"}
        with process_group(backend="gloo", init=place, environ=told) as job:
            (tmp_path / str(rank)).write_text(f"{job.ranks} {job.all_reduce_sum(1.0)}")

    start_processes(join, nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text() == f"rank {rank} of 2, local rank {rank} of 2 [2.0]"
