"""`muster check --bisect`: names the host or link with which a small all_reduce fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..check.bisect import culprits, of_culprit
from ..check.finding import Finding
from ..console.fold import fold_names
from ..console.terminal import harmless
from ..console.text import clip
from ..errors import UnfitError
from ..hosts.hostfile import Host
from ..plan.spec import LauncherName
from .bench_job import NOT_OF_HOSTS, SWEEP, BenchOptions, require_done, run_benchmark, spec_of
from .inventory import Inventory
from .shared import print_note

PATIENCE = 20
"""Seconds after which ranks give up a collective that does not end; a working one takes milliseconds."""
ARGS = (
    *("--operations=all_reduce", "--minbytes=8", "--maxbytes=8M", "--stepfactor=1024"),
    *("--iters=3", f"--timeout={PATIENCE}"),
)


def bisected(
    inventory: Inventory, hosts: Sequence[Host], launcher: LauncherName, python: str, runs: Path
) -> Iterator[Finding]:
    """Run all_reduce on all ranks of these hosts, then of fewer and fewer; a line on stderr for each run."""
    by_name = {host.name: host for host in hosts}
    if len(by_name) < 2:
        print_note("note: --bisect tried nothing, because it needs two hosts that are fit")
    options = BenchOptions(launcher=launcher, python=python)
    reasons: dict[str, str] = {}

    def fails(names: Sequence[str]) -> bool:
        chosen = [by_name[name] for name in names]
        spec = replace(spec_of(inventory, chosen, SWEEP, ARGS, options), stall_timeout=float(PATIENCE))
        try:
            ran = run_benchmark(spec, inventory, runs)
        except UnfitError as raised:
            reason = str(raised)
        else:
            failure = ran.result.failure
            if failure and failure.kind in NOT_OF_HOSTS:
                require_done(ran)  # exits
            reason = failure.headline if failure else ""
        shown = harmless(clip(" ".join(reason.split()), 300))
        sys.stderr.write(f"all_reduce of {fold_names(names)}: {shown or 'works'}\n")
        reasons.update(dict.fromkeys(names, shown) if shown else {})
        return bool(reason)

    for culprit in culprits([*by_name], fails):
        yield of_culprit(culprit, reasons[culprit.hosts[0]])
