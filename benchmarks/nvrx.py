"""The verdicts of NVIDIA's resiliency extension on the seeded hangs, on the same records as `muster why`.

    git clone https://github.com/NVIDIA/nvidia-resiliency-ext
    PYTHONPATH=nvidia-resiliency-ext/src python benchmarks/nvrx.py

Its `CollectiveAnalyzer` (attribution/trace_analyzer/fr_attribution.py) reads dumps of NCCL's flight recorder,
and lists the missing ranks of each process group. It needs only the standard library; its use of a language
model is left out, so it needs no network. The figures of docs/why.md are of commit d8686d9,
89 commits after v0.7.0-main. The wheel of 0.4.1 does not contain the analyser.

It gets the dumps of fr_trace.py as NCCL would have written them. It counts only `scheduled` collectives, so
each incomplete collective has that state, also if Gloo has given up on it and NCCL would still wait. A hang
counts as found if it names exactly the ranks of tests/hangs/table.py as hanging.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fr_trace import dump_of, report
from muster.deploy.features.why.positions import Positions, Rank

_MODULE = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"


def nccl_dump_of(rank: Rank, positions: Positions) -> dict[str, Any]:
    """A rank's record as NCCL's recorder would have dumped it, with how far each group has come."""
    dump = dump_of(rank, positions)
    entries = [_of_nccl(entry) for entry in dump["entries"]]
    status = {
        group: _status([one for one in entries if one["pg_id"] == int(group)]) for group in dump["pg_config"]
    }
    return {**dump, "entries": entries, "pg_status": status}


def _of_nccl(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        **entry,
        "pg_id": int(entry["process_group"][0]),
        "profiling_name": entry["profiling_name"].replace("gloo:", "nccl:", 1),
        "state": "completed" if entry["retired"] else "scheduled",
    }


def _status(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How far a group has come. `entries`: those of the group, oldest first.

    NCCL notes the number of the last entry, be it a collective or a message.
    """
    numbers = [(entry["p2p_seq_id"] or entry["collective_seq_id"], entry["retired"]) for entry in entries]
    return {
        "last_enqueued_collective": next((number for number, _ in reversed(numbers)), -1),
        "last_started_collective": -1,
        "last_completed_collective": next((number for number, done in reversed(numbers) if done), -1),
    }


def culprits(ranks: Sequence[Rank]) -> set[int] | str:
    """The ranks that the analyser calls hanging, of all process groups; or how it failed."""
    analyzer = importlib.import_module(_MODULE).CollectiveAnalyzer
    positions = Positions(ranks)
    with tempfile.TemporaryDirectory(prefix="nvrx-") as folder:
        for rank in ranks:
            if rank.evidence:
                dump = json.dumps(nccl_dump_of(rank, positions))
                (Path(folder) / f"_dump_{rank.number}.json").write_text(dump)
        asked = {"fr_path": folder, "pattern": "_dump_*", "llm_analyze": False}
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                found, _ = analyzer(asked).run_sync(asked)
            except Exception as error:  # noqa: BLE001  # it raises what it does not expect
                return f"fails: {type(error).__name__}: {error}"
        if "Error processing" in said.getvalue():  # it goes on without a file that it cannot read
            return f"fails: {said.getvalue()}"
    return {*json.loads(found["hanging_ranks"].partition(":")[2])}


if __name__ == "__main__":
    try:
        importlib.import_module(_MODULE)
    except ModuleNotFoundError as missing:
        sys.exit(f"{missing}: clone nvidia-resiliency-ext, and name its src in PYTHONPATH (see {__file__})")
    report("NVRx", culprits)
