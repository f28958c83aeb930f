"""The card: what Muster says of it, against nvidia-smi's XML and NVML; and faults that do no harm.

On a CPU it is the H100 of tests/golden/gpus/one-h100.txt, with a stand-in for NVML.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from muster.deploy.core.agent import gpus
from muster.deploy.core.decode import from_json
from muster.deploy.features.check.host import Needs, of_gpus
from muster.deploy.features.check.messages import GpuReport
from muster.deploy.features.samples.on_host.gpu_meter import GpuMeter
from muster.deploy.features.samples.on_host.gpu_meter import find as find_smi

from .jobs import ROOT
from .records import Proof, Recorder
from .views import View, compared, of_nvml, of_xml

MUSTER = Path(sys.executable).with_name("muster")
SECONDS = 30.0
METERED_SECONDS = 7.0  # three lines of nvidia-smi's loop
FREED_SECONDS = 10.0
MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    """Where the figures come from: a root of files and programs, and the module pynvml or its stand-in."""

    root: str
    nvml: Any
    proof: Proof

    def survey(self) -> dict[str, Any]:
        """What the agent says."""
        return gpus.survey(self.root)

    def others(self) -> tuple[View, View]:
        """The first GPU by nvidia-smi's XML, and by NVML."""
        smi = find_smi(gpus.Machine(self.root))
        argv = [smi, "-q", "-x"]
        text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
        return of_xml(text)[0], of_nvml(self.nvml)[0]


def run(recorder: Recorder, proof: Proof) -> None:
    """Look at the idle card, then hold its memory, then load it."""
    with tempfile.TemporaryDirectory(prefix="muster-card-") as folder:
        card = card_of(proof, Path(folder))
        with recorder.step("hidden"), hidden_launch(Path(folder)) as hidden:
            with recorder.step("about"):
                about(recorder, card)
            with recorder.step("idle"):
                look(recorder, card, "idle", [])
            with recorder.step("busy"):
                busy(recorder, card, Path(folder))
            with recorder.step("load"):
                loaded(recorder, card, Path(folder))
            judge_hidden(recorder, proof, hidden)


def card_of(proof: Proof, folder: Path) -> Card:
    """The card of this machine, or the stand-in."""
    if proof.on_gpu:
        import pynvml  # noqa: PLC0415 - only where there is a GPU

        return Card("/", pynvml, proof)
    from tests import fake_nvml  # noqa: PLC0415 - only without a GPU
    from tests.node.trees import FOLDER, unpack  # noqa: PLC0415

    unpack((FOLDER / "one-h100.txt").read_text(encoding="utf-8"), folder / "root")
    return Card(str(folder / "root"), fake_nvml, proof)


def about(recorder: Recorder, card: Card) -> None:
    """The machine and its versions, for the head of a table."""
    seen = card.survey()["gpu_host"]
    smi, _ = card.others()
    recorder.figure("day", f"{datetime.now(timezone.utc):%Y-%m-%d}")
    recorder.figure("GPU", smi["name"], note=f"{smi['total']:.0f} MiB, at {smi['bus']}")
    recorder.figure("driver", smi["driver"], note="open module" if seen["open_module"] else "")
    recorder.figure("kernel", platform.release(), note=f"Python {platform.python_version()}")
    where = "" if Path(f"{card.root}/{gpus.DRIVER}").exists() else f"no {gpus.DRIVER}"
    recorder.figure("GPUs by their device files", seen["devices"], note=where)


def about_torch(recorder: Recorder, card: Card, user: Mapping[str, Any]) -> None:
    """The versions of torch, and the GPU by its names there."""
    names = {name: user[name] for name in ("cuda", "nccl") if user.get(name)}
    recorder.figure(
        "torch", user["torch"], note=", ".join(f"{name} {value}" for name, value in names.items())
    )
    if card.proof.on_gpu:
        smi, _ = card.others()
        same = (user["name"], user["uuid"]) == (smi["name"], smi["uuid"])
        recorder.check(
            "torch names the same GPU", same, note="" if same else f"{user['name']} {user['uuid']}"
        )


# -- the survey of the agent, and the judgement of check --


def look(recorder: Recorder, card: Card, when: str, expected: list[str], *pids: int) -> int:
    """Check every field of the survey, and the findings about it; returns the MiB in use."""
    survey, views = card.survey(), card.others()
    gpu = survey["gpus"][0] if survey["gpus"] else {}
    fields: dict[str, Any] = {name: sorted(value) if name == "pids" else value for name, value in gpu.items()}
    number, wrong = compared(fields, views)
    complete = number >= 10 and not wrong
    note = "; ".join(wrong) or (survey["gpu_error"] or "")
    recorder.check(
        f"{when}: survey, nvidia-smi -q -x and NVML agree", complete, number, unit="fields", note=note
    )
    if pids:
        recorder.check(f"{when}: the survey has the processes", fields["pids"] == [*pids], fields["pids"])
    found = of_gpus("localhost", from_json(GpuReport, json.loads(json.dumps(survey))), Needs(), expected=1)
    ids = [finding.id for finding in found if finding.id != "gpu.persistence-off"]
    text = "; ".join(finding.text for finding in found)
    recorder.check(f"{when}: findings", ids == expected, ", ".join(ids) or "none", note=text)
    return int(fields["used"])


def busy(recorder: Recorder, card: Card, folder: Path) -> None:
    """Check what is said while a process is on the GPU, then one that has almost all of its memory."""
    idle = card.survey()["gpus"][0]["used"]
    for use in ("context", "memory"):
        with using(use, card.proof) as user:
            if use == "context":
                about_torch(recorder, card, user)
            pids = [user["pid"]] if card.proof.on_gpu else []
            more = look(recorder, card, use, ["gpu.busy"] * len(pids), *pids) - idle
            recorder.figure(
                f"{use}: memory more than idle", more, "MiB", note=f"{user['bytes'] / MIB:.0f} asked for"
            )
            if card.proof.on_gpu:
                text = said_by_check(folder)
                named = f"in use by processes {user['pid']}" in text
                recorder.check(f"{use}: muster check names the process", named, note=text)
                recorder.check(f"{use}: its memory is seen", more >= user["bytes"] / MIB, more, unit="MiB")
    began = time.monotonic()
    while (used := card.survey()["gpus"][0]["used"]) > idle + 64:
        if time.monotonic() - began > FREED_SECONDS:
            break
        time.sleep(0.2)
    recorder.check("afterwards: the memory is free again", used <= idle + 64, used, unit="MiB")


def said_by_check(folder: Path, **variables: str) -> str:
    """The findings of `muster check` about the GPUs of this machine, and how many it counts."""
    done = muster(folder, "check", "--json", **variables)
    host, found = json.loads(done.stdout)["hosts"][0], json.loads(done.stdout)["findings"]
    texts = [one["text"] for one in found if one["id"].startswith(("gpu.", "driver.", "torch.", "slots."))]
    return "; ".join([f"{len(host['health']['gpus'])} GPU", *texts])


# -- the samples --


def loaded(recorder: Recorder, card: Card, folder: Path) -> None:
    """Check the samples of the GPU during matrix products."""
    with using("matmul", card.proof):
        meter, samples = GpuMeter(find_smi(gpus.Machine(card.root))), []
        try:
            until = time.monotonic() + (METERED_SECONDS if card.proof.on_gpu else 1.0)
            meter.read()
            while time.monotonic() < until:
                samples += meter.read()[:1]
                time.sleep(0.5)
        finally:
            meter.close()
        views = card.others()
        judge_samples(recorder, samples, views)


def judge_samples(recorder: Recorder, samples: list[dict[str, Any]], views: tuple[View, View]) -> None:
    """Check the newest sample field by field, and those that change against the limits of the card."""
    last, limits = samples[-1], views[1]
    ours = {name: last[name] for name in ("index", "name", "ecc", "temperature")}
    ours |= {"used": last["memory"] // MIB, "total": last["memory_total"] // MIB}
    number, wrong = compared(ours, views)
    complete = number == sum(value is not None for value in ours.values())
    name = "load: the sample, nvidia-smi -q -x and NVML agree"
    recorder.check(name, complete and not wrong, number, unit="fields", note="; ".join(wrong))
    most: Mapping[str, float] = {
        name: max((sample[name] or 0.0 for sample in samples), default=0.0)
        for name in ("utilisation", "power", "clock", "temperature")
    }
    recorder.check("load: utilisation", 0.5 <= most["utilisation"] <= 1.0, most["utilisation"])
    # A reading is an average of some time, and the limit is enforced on such an average.
    within = 0 < most["power"] <= 1.1 * (limits["power_limit"] or float("inf"))
    recorder.check(
        "load: power", within, most["power"], unit="W", note=f"limit {limits['power_limit']:.0f} W"
    )
    clock = 0 < most["clock"] <= limits["clock_limit"]
    recorder.check("load: clock", clock, most["clock"], unit="MHz", note=f"limit {limits['clock_limit']} MHz")
    recorder.figure("load: temperature", most["temperature"], "°C")


# -- a GPU that is hidden --


@contextmanager
def hidden_launch(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A launch whose rank sees no GPU and asks for NCCL; it runs beside the other steps."""
    (folder / "hidden").mkdir()
    argv = [str(MUSTER), "launch", "--np", "1", "--backend", "nccl", "--env", "CUDA_VISIBLE_DEVICES="]
    argv += ["--env", f"PYTHONPATH={ROOT}", "--module", "benchmarks.tools.collectives"]
    with subprocess.Popen(
        argv, cwd=folder / "hidden", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        yield process


def judge_hidden(recorder: Recorder, proof: Proof, hidden: subprocess.Popen[str]) -> None:
    """Check what the launch says, and what check and a tool say with the same variable."""
    text, _ = hidden.communicate(timeout=SECONDS * proof.patience)
    lines = [line.strip() for line in text.splitlines() if "CUDA_VISIBLE_DEVICES" in line]
    ended = hidden.returncode not in {0, 3, 130} and bool(lines)
    note = lines[0] if lines else text[-300:]
    recorder.check("hidden: the launch names CUDA_VISIBLE_DEVICES", ended, note=note)
    if not proof.on_gpu:
        return
    with tempfile.TemporaryDirectory() as folder:
        said = said_by_check(Path(folder), CUDA_VISIBLE_DEVICES="")
    recorder.check("hidden: check counts the GPU", said.startswith("1 GPU"), note=said)
    argv = [sys.executable, "-m", "benchmarks.tools.collectives", "--json"]
    hides = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, env=hides, capture_output=True, text=True, timeout=SECONDS, check=True)
    backend = json.loads(done.stdout)["backend"]
    recorder.check("hidden: a tool takes Gloo", backend == "gloo", backend)


# -- processes --


@contextmanager
def using(use: str, proof: Proof) -> Iterator[dict[str, Any]]:
    """A process that uses the GPU (load.py), and what it says of itself."""
    argv = [sys.executable, "-m", "benchmarks.gpu.load", use, proof.device]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise ValueError(f"{' '.join(argv[2:])}: it ended with {process.wait()}")
        yield json.loads(line)  # its input closes at the end of the block


def muster(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a folder without a hosts file above it."""
    return subprocess.run(
        [MUSTER, *words], cwd=folder, env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
