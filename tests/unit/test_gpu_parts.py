"""How the parts of the GPU proof about ranks and examples evaluate what jobs found; the jobs are made up."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import part_examples, part_mpi
from benchmarks.gpu.jobs import MARK, Ended, found_in
from benchmarks.gpu.records import Proof, Recorder

LOSSES = [5.5, 5.2, 4.9]
FOUND: dict[str, Any] = {
    **dict.fromkeys(
        (
            "minimal",
            "gpt",
            "gpt_sharded",
            "gpt, evaluated",
            "bf16",
            "recompute",
            "fp16",
            "offloaded",
            "SIGUSR1",
            "SIGTERM",
        ),
        LOSSES,
    ),
    **{"sharded, resumed": LOSSES, "SIGUSR1 status": 75, "SIGTERM status": 75},
    **{"profile": {"cpu_op": 9, "kernel": 3, "gpu_memcpy": 0}, "silent": "", "library": {"one": ""}},
    **{"device": "cuda:0", "backend": "nccl", "torch": "2.11"},
}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "records.jsonl")


def ended(*found: Any, status: int = 0, text: str = "") -> Ended:
    return Ended(status, text, found, 1.0, Path("/nowhere"))


def failed(recorder: Recorder) -> list[str]:
    return [record.name for record in recorder.records if record.outcome == "fail"]


def curves(recorder: Recorder, **changes: Any) -> list[str]:
    """What fails where the GPU found something else."""
    on_gpu = copy.deepcopy(FOUND) | changes
    proof = Proof(Path("/nowhere"), "cuda")
    part_examples._record_curves(recorder, proof, ended(on_gpu), ended(FOUND))
    return failed(recorder)


def test_the_values_of_all_ranks_are_read_from_their_logs() -> None:
    assert found_in(f'x\n[0] {MARK}{{"a": 1}}\ny', "nothing", f"{MARK}2") == ({"a": 1}, 2)


def test_equal_curves_pass(recorder: Recorder) -> None:
    assert curves(recorder) == []
    assert len(recorder.records) > 15


@pytest.mark.parametrize(
    ("name", "value", "failing"),
    [
        ("gpt", [5.501, 5.2, 4.9], "gpt: the CPU's loss in its first step"),
        ("gpt", [5.5, 5.2, 4.89], "gpt: the CPU's loss in all steps"),
        ("gpt", [5.5, 5.2, float("nan")], "gpt: the CPU's loss in all steps"),
        ("SIGTERM", LOSSES[:2], "SIGTERM, resumed: the loss without it"),
        ("SIGTERM status", 0, "SIGTERM: the training saves, and ends with 75"),
        (
            "profile",
            {"cpu_op": 9, "kernel": 0, "gpu_memcpy": 1},
            "profile: it has the operations, and a GPU's kernels",
        ),
        (
            "silent",
            "RuntimeError: it waited",
            "gpt: no step waits for the GPU that is neither logged nor saved",
        ),
        ("library", {"one": "wrong"}, "muster.train one"),
    ],
)
def test_a_difference_is_a_failure(recorder: Recorder, name: str, value: Any, failing: str) -> None:
    assert failing in curves(recorder, **{name: value})


def test_a_job_that_failed_says_why(recorder: Recorder) -> None:
    broken = ended(status=1, text="a line\nRuntimeError: no kernel\nrank 0 exited with 1\n")
    part_examples._record_curves(recorder, Proof(Path("/nowhere"), "cuda"), broken, ended(FOUND))
    assert failed(recorder) == ["examples on cuda: the job ends"]
    assert recorder.records[-1].note == "RuntimeError: no kernel"


def collectives(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, backend: str, *found: Any) -> list[str]:
    told = [{"wrong": wrong, "MiB": 64, "milliseconds": 1.0, "cuda_aware": False} for wrong in found]
    monkeypatch.setattr(part_mpi, "launch", lambda *_, **__: ended(*told))
    part_mpi._collectives(recorder, backend, "mpirun", part_mpi.TWO, "cuda")()
    return failed(recorder)


def test_a_wrong_value_on_one_rank_is_a_failure(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = collectives(recorder, monkeypatch, "mpi", {"all_reduce": ""}, {"all_reduce": "3 of 4 are wrong"})
    assert wrong == ["mpi, 2 ranks by mpirun: right values of collectives, messages and streams"]
    assert recorder.records[-1].note == "all_reduce: rank 1: 3 of 4 are wrong"


def test_a_rank_that_says_nothing_is_a_failure(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert collectives(recorder, monkeypatch, "mpi", {"all_reduce": ""}) == [
        "mpi, 2 ranks by mpirun: the job ends"
    ]


def test_what_gloo_lacks_is_a_figure(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"all_reduce": "", "reduce": "RuntimeError: Invalid device"}
    assert collectives(recorder, monkeypatch, "gloo", found, found) == []
    assert "reduce" in [record.value for record in recorder.records]
