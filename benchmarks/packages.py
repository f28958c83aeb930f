"""The cost of bringing packages to hosts without an index: `muster launch --requirements`, and pip by hand.

    .venv/bin/python benchmarks/packages.py --image IMAGE --wheels FOLDER --requirements requirements.txt

The hosts are simulated (lab.py), on an isolated network. The image needs sshd, iproute2 and a Python with
venv that fits to the wheels. "By hand" means: `scp -r` of the wheels to all hosts at once,
and on each host a virtual environment, `pip install --no-index` and the program. `muster launch` takes the
same wheels, and starts the same program under torchrun; a first round, which is not counted, fills the caches
here. The contestants run in turn; figures are medians. The last line is the time that `--requirements` adds
to a launch whose hosts have the environment: the difference to `--python` with the environment made by hand.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from lab import FAB, ROOT, Cost, Lab, docker, lab, measure  # type: ignore[import-not-found]  # beside this script

PROGRAM = "import {modules}; print('ready', flush=True)\n"
LAUNCH = (str(FAB), "launch", "--launcher", "torchrun", "--script", "uses.py")
PACKAGES = ("--requirements", "requirements.txt", "--torch-backend", "none")
OWN_PYTHON = ("--python", "env/bin/python")
BY_HAND = """
install() {{
    scp -F {config} -q -r {wheels} plain.txt uses.py "$1": &&
    ssh -F {config} "$1" 'python3 -m venv env && env/bin/pip install -q --no-index --find-links {folder} \\
        -r plain.txt && env/bin/python uses.py'
}}
for host in {names}; do install "$host" & pids="$pids $!"; done
for pid in $pids; do wait "$pid" || exit 1; done
"""


def contestants(made: Lab, wheels: Path) -> dict[str, tuple[str, ...]]:
    """The command of each contestant."""
    words = {
        "names": " ".join(made.names),
        "config": made.ssh_config,
        "wheels": wheels,
        "folder": wheels.name,
    }
    return {
        "scp and pip install": ("sh", "-c", BY_HAND.format(**words)),
        "muster launch --requirements": (*LAUNCH, *PACKAGES),
    }


def bare(made: Lab) -> None:
    """Remove what an earlier round has installed."""
    script = "chmod -R u+w /home/h*/.muster 2>/dev/null; rm -rf /home/h*/* /home/h*/.muster /home/h*/.cache"
    docker("exec", made.container, "sh", "-c", script, check=True)


def write_project(made: Lab, options: argparse.Namespace) -> None:
    """The program and its requirements; each line of those is a package, with its version or without."""
    (made.folder / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
    (made.folder / "uses.py").write_text(PROGRAM.format(modules=", ".join(options.modules)))
    text = options.requirements.read_text()
    (made.folder / "plain.txt").write_text(text)
    wheels = f"--no-index\n--find-links {options.wheels.resolve()}\n"
    (made.folder / "requirements.txt").write_text(wheels + text)


def shown(costs: dict[str, list[Cost]], added: list[float], count: int) -> str:
    """The table, and what a second launch takes."""
    by_hand = statistics.median(cost.wall for cost in costs["scp and pip install"])
    lines = [f"| {count} hosts | seconds | of pip's | client CPU, s |", "| --- | --- | --- | --- |"]
    for who, all_costs in costs.items():
        walls = [cost.wall for cost in all_costs]
        client = statistics.median(cost.client for cost in all_costs)
        middle = statistics.median(walls)
        spread = f"{middle:.1f} ({min(walls):.1f} to {max(walls):.1f})"
        lines.append(f"| {who} | {spread} | {middle / by_hand:.2f} | {client:.1f} |")
    middle = statistics.median(added)
    lines += [
        "",
        f"a second launch adds {middle:.2f} s ({min(added):.2f} to {max(added):.2f}; {len(added)} pairs)",
    ]
    return "\n".join(
        [*lines, f"{os.cpu_count()} cores for all, load {os.getloadavg()[0]:.1f} at the end", ""]
    )


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--image", required=True)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--requirements", type=Path, required=True)
    parser.add_argument("--modules", nargs="+", default=["torch"], help="what the program imports")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, lab(Path(place), options.hosts, options.image) as made:
        made.only(options.hosts)
        write_project(made, options)
        costs: dict[str, list[Cost]] = {}
        for number in range(options.rounds + 1):
            bare(made)
            for who, words in contestants(made, options.wheels.resolve()).items():
                cost = measure(words, made)
                sys.stderr.write(f"{who}: {cost}\n")
                if number:  # the first round locks, and fills the caches here
                    costs.setdefault(who, []).append(cost)
        added = []
        for _ in range(options.pairs):
            pair = [measure((*LAUNCH, *words), made).wall for words in (PACKAGES, OWN_PYTHON)]
            added.append(pair[0] - pair[1])
        sys.stdout.write(shown(costs, added, options.hosts))


if __name__ == "__main__":
    main()
