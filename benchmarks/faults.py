"""Writes docs/faults.md from several rounds of the fault tests: `python benchmarks/faults.py [ROUNDS]`.

Each round is a run of tests/cluster/test_faults.py, which appends its measurements to the file that
MUSTER_FAULTS_RECORD names. The first round empties that file; with 0 rounds, the document is made of the
present file. The section on recoveries is of benchmarks/recovery.py, and stays.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.peers import NAMES, PEERS  # noqa: E402  # from the checkout
from benchmarks.recovery import section_of  # noqa: E402
from benchmarks.untimed_faults import UNTIMED  # noqa: E402
from tests.cluster.faults import FAULTS, LAUNCHERS  # noqa: E402
from tests.cluster.start_faults import START_FAULTS  # noqa: E402

LONGEST_SAYING = 160
RECORD = Path(os.environ.get("MUSTER_FAULTS_RECORD", ROOT / ".pytest_cache" / "faults.jsonl"))
TEXT = """# What happens when something breaks

Six ranks on three hosts of the practice cluster; the ranks only sleep, so no collective fails with a rank.
Medians of {rounds} on {machine}.
Made by `python benchmarks/faults.py` from [tests/cluster/faults.py](../tests/cluster/faults.py). `make soak`
enforces the limits. It tests faults that the agents notice only under mpirun. With more than two waiting
processes for each core it allows up to twice the limit, so a figure can exceed its limit here.

## While a job runs

Seconds from the fault to the verdict / to the end of the last process of the job on any reachable host.

{running}

- With `--stall-timeout S` a job ends when a rank is stopped, or stuck in the kernel, for S seconds, or when
  for S seconds no rank prints and none uses more than a twentieth of a core, or of a GPU on which nvidia-smi
  shows it. A rank that computes without printing is not stalled. Ranks that poll while they wait, as MPI and
  CUDA do, look busy: the agents notice no deadlock among them, but a stopped rank. They check every 2 s.
- The agent recognises a SIGKILL by the kernel for lack of memory by the counters of the host's memory
  cgroup (v1 and v2). If other programs share the cgroup, and the kernel kills one of them just before a
  rank gets SIGKILL, the rank is reported as out of memory too.
- A host that is frozen, or whose packets are dropped, ends its part of the job after 12 s of silence, as
  soon as it runs again.
- The figures are of ranks without a handler for SIGTERM, which die at once; one that ignores SIGTERM is
  killed after 2 s. A rank with a handler gets `--grace` seconds (default: 30) to save, whatever ends the job:
  Ctrl-C, `muster stop`, the failure of another rank, a stall, a restart. A launcher that gives up earlier, as
  mpirun does after a second, ends only its own process of the rank. A second Ctrl-C or `muster stop` shortens
  the grace to 1 s, and the end of the driver to 5 s (detached: 20 s).
- With Open MPI 4.1, a rank that has initialised MPI ends with mpirun, which gives up about 2 s after the
  failure of another rank. With 5.0 it can save, and fails in MPI_Finalize.
- SIGTERM goes to the program of a rank alone. Its children are left to it while it handles the signal; the
  commands of a shell script get it too, because a shell waits for them before it runs its trap.
- An agent alone keeps the same grace: its part of the job ends at most `--grace` and 6 s after its connection
  has broken, with 12 s of silence before that for a host that is cut off.

{recovery}## Before a job runs

Seconds from the command to its end.

{starting}

## Untimed faults

These tests check the message and the remains, not the time.

{untimed}

## Compared with six launchers

The other launchers were measured on another day, on the same kind of machine and the same three containers:
compare hangs, leftovers and exit statuses rather than tenths of seconds. DeepSpeed 0.19.8 (pdsh), Colossal-AI
0.5.0, Open MPI 5.0.7, torchrunx 0.4.0; torchrun of torch 2.6 and accelerate 1.15.0 by hand, one ssh for each
host. The figures are seconds until the launcher returned; "never" means not within 30 to 60 s, and "n left"
that n ranks continued. Except when a rank raises, the other ranks were in an all_reduce, whose closed sockets
end them. An empty cell was not tried.

{peers}
"""


def main(rounds: int) -> None:
    """Run the rounds, then write the document."""
    RECORD.parent.mkdir(exist_ok=True)
    if rounds:
        RECORD.write_text("")  # the figures of an earlier tree would count among those of this one
    for _ in range(rounds):
        words = [sys.executable, "-m", "pytest", "-q", "tests/cluster/test_faults.py"]
        subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, "MUSTER_FAULTS_RECORD": str(RECORD)})
    measured = [json.loads(line) for line in RECORD.read_text().splitlines()]
    if not measured:
        sys.exit(f"{RECORD}: no fault was measured; read the output of: pytest tests/cluster/test_faults.py")
    (ROOT / "docs" / "faults.md").write_text(document(measured))


def document(measured: Sequence[dict[str, Any]]) -> str:
    """Return the text of docs/faults.md for these measurements."""
    counts = {(entry["name"], entry["launcher"]): 0 for entry in measured}
    for entry in measured:
        counts[entry["name"], entry["launcher"]] += 1
    rounds = sorted(set(counts.values()))
    load = statistics.median(entry["load"] for entry in measured if "load" in entry)
    return TEXT.format(
        recovery=section_of((ROOT / "docs" / "faults.md").read_text()),
        rounds=f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else f"{rounds[0]} rounds",
        machine=f"{os.cpu_count()} cores at a load of {load:.0f}",
        running=table(
            ("fault", "limit, s", "mpirun", "torchrun", "status", "the verdict names"),
            (
                (
                    fault.title,
                    f"{fault.within:g}",
                    *(seconds(measured, name, launcher) for launcher in LAUNCHERS),
                    str(fault.status),
                    f"`{named}`" if (named := said(measured, name)) else "its driver is gone",
                )
                for name, fault in FAULTS.items()
            ),
        ),
        starting=table(
            ("fault", "limit, s", "seconds", "status", "message"),
            (
                (
                    fault.title,
                    f"{fault.within:g}",
                    seconds(measured, name, "mpirun"),
                    str(fault.status),
                    f"`{said(measured, name)}`",
                )
                for name, fault in START_FAULTS.items()
            ),
        ),
        untimed=table(("fault", "result", "test"), UNTIMED),
        peers=table(
            ("fault", "Muster, mpirun", "Muster, torchrun", *NAMES),
            (
                (title, *(seconds(measured, name, launcher) for launcher in LAUNCHERS), *PEERS[name])
                for name, title in titles()
                if name in PEERS
            ),
        ),
    )


def titles() -> Iterable[tuple[str, str]]:
    """Yield the name and the title of every fault."""
    yield from ((name, fault.title) for name, fault in FAULTS.items())
    yield from ((name, fault.title) for name, fault in START_FAULTS.items())


def seconds(measured: Iterable[dict[str, Any]], name: str, launcher: str) -> str:
    """Return the medians of the verdict and of the end, `0.7 / 1.0`; "" if the fault was not measured."""
    entries = [entry for entry in measured if (entry["name"], entry["launcher"]) == (name, launcher)]
    kinds = ("verdict",) if name in START_FAULTS else ("verdict", "clean")
    return " / ".join(median(entries, kind) for kind in kinds) if entries else ""


def median(measured: Iterable[dict[str, Any]], kind: str) -> str:
    """Return the median in seconds; a dash without measurements, as a killed driver writes no verdict."""
    times = [entry[kind] for entry in measured if entry[kind] is not None]
    return f"{statistics.median(times):.1f}" if times else "-"


def said(measured: Iterable[dict[str, Any]], name: str) -> str:
    """Return the text of a verdict on the fault, without the parts that differ each time."""
    text = next((entry["named"] for entry in measured if entry["name"] == name and entry["named"]), "")
    for pattern, short in ((r"/\S+/(?=known_hosts)", ""), (r"SHA256:[\w+/]+", "SHA256:…"), (r"\|", r"\|")):
        text = re.sub(pattern, short, text)
    return text if len(text) <= LONGEST_SAYING else f"{text[:LONGEST_SAYING]}…"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
