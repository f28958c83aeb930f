"""The verdicts of torch's own `fr_trace` on the seeded hangs, on the same records as `muster why`.

    python benchmarks/fr_trace.py

`fr_trace` (torch.distributed.flight_recorder) compares dumps of ranks. It gets each golden record of
tests/golden/hangs as such dumps: every collective and message that the ranks have begun, with groups, sizes,
types and states. That is more than torch itself would have written: torch records only the starts of its
backends, and these records have the calls of the program too.

A hang counts as found if `fr_trace` names exactly the ranks of tests/hangs/table.py as missing or culprits.
It needs torch 2.13, and no network.
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.deploy.features.why.hang_verdict import explain
from muster.deploy.features.why.messages import SETUP, RecordedCall
from muster.deploy.features.why.positions import Positions, Rank
from tests.hangs.capture import RECORDS, judge, records_of
from tests.hangs.table import HANGS, Hang

# The words of c10d's backends for the functions of torch.distributed.
_NAMES = {"all_gather_into_tensor": "_all_gather_base", "reduce_scatter_tensor": "_reduce_scatter_base"}
_STATES = {"i": "scheduled", "a": "started", "d": "completed", "f": "completed"}
_ASKED = Namespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10)


def dump_of(rank: Rank, positions: Positions) -> dict[str, Any]:
    """A rank's record as torch's recorder would have dumped it."""
    groups = [group for group in positions.collectives if group != SETUP] or ["0"]
    config = {
        group: {"desc": "default_pg" if group == "0" else "", "ranks": str(positions.members(group))}
        for group in groups
        if rank.number in positions.members(group)
    }
    entries = [
        entry
        for entry in positions.all_entries(rank.number)
        if entry.group in config and entry.group != SETUP
    ]
    return {
        "rank": rank.number,
        "version": "2.10",
        "pg_config": config,
        "entries": [_entry(number, rank.number, entry, config) for number, entry in enumerate(entries)],
    }


def _entry(number: int, rank: int, entry: RecordedCall, config: dict[str, dict[str, str]]) -> dict[str, Any]:
    is_p2p = entry.kind == "message"
    name = _NAMES.get(entry.op, entry.op)
    if is_p2p:
        name = f"recv {rank}<-{entry.peer}" if entry.op.endswith("recv") else f"send {rank}->{entry.peer}"
    members = config[entry.group]["ranks"].count(",") + 1
    gathers = members if entry.op.startswith("all_gather") else 1
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": (entry.group, config[entry.group]["desc"]),
        "collective_seq_id": 0 if is_p2p else entry.seq,
        "p2p_seq_id": entry.seq if is_p2p else 0,
        "op_id": number,
        "profiling_name": f"gloo:{name}",
        "input_sizes": [[entry.elements]],
        "output_sizes": [[entry.elements * gathers]],
        "input_dtypes": [entry.dtype],
        "output_dtypes": [entry.dtype],
        "state": _STATES[entry.state],
        "retired": entry.state == "d",
        "is_p2p": is_p2p,
        "time_created_ns": int(entry.at * 1e9),
        "timeout_ms": 1_800_000,
        "frames": [{"name": "", "filename": entry.where.rpartition(":")[0], "line": entry.where}],
    }


def culprits(ranks: Sequence[Rank]) -> set[int] | str:
    """The ranks that fr_trace names in the first collective that does not fit; or how it failed."""
    from torch.distributed.flight_recorder.components.builder import build_db  # noqa: PLC0415

    positions = Positions(ranks)
    details = {str(rank.number): dump_of(rank, positions) for rank in ranks if rank.evidence}
    logging.disable(logging.CRITICAL)  # it prints what it finds
    try:
        found = build_db(details, _ASKED, "2.10").collectives
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it asserts what it does not expect
        return f"fails: {type(error).__name__}: {error}"
    wrong = next((one for one in found if not one.pass_check or one.missing_ranks), None)
    if wrong is None:
        return set()
    return {*(wrong.missing_ranks or ()), *(wrong.mismatch_collectives or ())}


Analyser = Callable[[Sequence[Rank]], set[int] | str]
"""The ranks that an analyser of dumps names for a record; or how it failed."""


def table(analyser: Analyser) -> Iterator[tuple[Hang, bool, set[int] | str]]:
    """Each hang with whether `muster why` explains its record, and what an analyser says of it."""
    for hang in HANGS:
        path = RECORDS / f"{hang.program}-gloo.json.gz"
        if path.exists():
            ranks = records_of(path)
            yield hang, not judge(hang, explain(ranks)), analyser(ranks)


def report(name: str, analyser: Analyser) -> None:
    """Print the table, and how many hangs each of both explains."""
    rows = [*table(analyser)]
    exact = lenient = 0
    for hang, ours, named in rows:
        wanted = {*hang.culprits}
        exact += named == wanted
        lenient += isinstance(named, set) and named >= wanted
        theirs = "found" if named == wanted else f"{named or 'nothing'} for {wanted}"
        sys.stdout.write(f"{hang.program:28} muster why {'found' if ours else 'wrong':6} {name} {theirs}\n")
    sys.stdout.write(f"muster why: {sum(ours for _, ours, _ in rows)} of {len(rows)}; ")
    sys.stdout.write(f"{name}: {exact} of {len(rows)}, and {lenient - exact} with other ranks besides\n")


if __name__ == "__main__":
    report("fr_trace", culprits)
