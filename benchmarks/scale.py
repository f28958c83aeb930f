"""The cost of asking many hosts, and of bringing code to them: Muster, pdsh, clush, Fabric's ThreadingGroup.

    .venv/bin/python benchmarks/scale.py --sizes 3 64 256 --rounds 3

The hosts are simulated (lab.py). The contestants run in turn (A B C A B C ...) in one run; figures are
medians. Each makes new connections, with the same keys and configuration. pdsh and clush are left out where
they are not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import FAB, ROOT, Cost, Lab, docker, lab, measure  # type: ignore[import-not-found]  # beside this script

sys.path.insert(0, str(ROOT))

AT_ONCE = "64"
# Commands that show some of what `fab check` reports.
QUESTIONS = "hostname; nproc; ulimit -n; df -k . /dev/shm; date +%s.%N; python3 -V; mpirun --version"
GROUP = """
import io, sys
from fabric import Config, ThreadingGroup
config = Config(runtime_ssh_path=sys.argv[1], overrides={"load_ssh_configs": True})
group = ThreadingGroup(*open(sys.argv[2]).read().split(), config=config)
if len(sys.argv) > 3:
    group.put(sys.argv[3], "code.tar.gz")
    group.run("mkdir -p code && tar -xzf code.tar.gz -C code", hide=True)
else:
    group.run("true", hide=True)
"""


def contestants(made: Lab, count: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the commands of each task, by contestant."""
    config, hosts = str(made.ssh_config), ",".join(made.names[:count])
    pdsh = ("env", f"PDSH_SSH_ARGS=-F {config} %h", "pdsh", "-S", "-R", "ssh", "-f", AT_ONCE, "-w", hosts)
    scp = (
        "pdsh",
        "-S",
        "-R",
        "exec",
        "-f",
        AT_ONCE,
        "-w",
        hosts,
        "scp",
        "-F",
        config,
        "-q",
        "-r",
        "code",
        "%h:",
    )
    clush = ("clush", "-S", "-q", "-f", AT_ONCE, "-o", f"-F {config}", "-w", hosts)
    group = (sys.executable, "-c", GROUP, config, "names.txt")
    tasks = {
        "`true` on every host": {
            "pdsh": (*pdsh, "true"),
            "clush": (*clush, "true"),
            "Fabric ThreadingGroup": group,
            "fab run": (str(FAB), "run", "--", "true"),
        },
        "how every host is": {
            "pdsh, seven commands": (*pdsh, QUESTIONS),
            "clush, seven commands": (*clush, QUESTIONS),
            "fab check": (str(FAB), "check"),
        },
        "code to every host": {
            "pdsh with scp -r": scp,
            "clush --copy": (*clush, "--copy", "code", "--dest", "."),
            "Fabric ThreadingGroup": (*group, "code.tar.gz"),
            "fab launch, until its start": (sys.executable, __file__, "--deliver"),
        },
    }
    tools = {"pdsh": "pdsh", "clush": "clush"}
    return {
        task: {
            who: words
            for who, words in rows.items()
            if (tool := tools.get(who.split(",")[0].split()[0])) is None or shutil.which(tool)
        }
        for task, rows in tasks.items()
    }


def fresh(made: Lab, code: Path) -> None:
    """Remove what an earlier round delivered, and change the code, so that every round delivers all of it."""
    docker("exec", made.container, "sh", "-c", "rm -rf /home/h*/code* /home/h*/.muster", check=True)
    shutil.rmtree(made.folder / "code", ignore_errors=True)
    shutil.copytree(code, made.folder / "code")
    subprocess.run(["tar", "-czf", "code.tar.gz", "-C", "code", "."], cwd=made.folder, check=True)


def deliver_here() -> None:
    """Deliver the folder `code` to every host as a launch does, and exit."""
    from muster.deploy.cli.option_values import new_job  # noqa: PLC0415
    from muster.deploy.cli.rank_program import program_of  # noqa: PLC0415  # only this process needs them
    from muster.deploy.core.connect.cluster import Cluster  # noqa: PLC0415
    from muster.deploy.core.connect.opener import access_beside  # noqa: PLC0415
    from muster.deploy.core.hosts import hostfile  # noqa: PLC0415  # only this process needs them
    from muster.deploy.core.job.deliver import Contents, deliver  # noqa: PLC0415
    from muster.deploy.core.job.planning import tools  # noqa: PLC0415
    from muster.deploy.core.job.stages import DeliveryStage  # noqa: PLC0415
    from muster.deploy.core.plan.launcher import place_ranks  # noqa: PLC0415
    from muster.deploy.core.plan.planner import plan  # noqa: PLC0415
    from muster.deploy.core.plan.source_tree import scan  # noqa: PLC0415
    from muster.deploy.core.plan.spec import LaunchSpec  # noqa: PLC0415

    code = Path("code").resolve()
    tree = scan(code)
    spec = LaunchSpec(
        job=new_job(),
        tree=tree,
        program=program_of(tree, code, script=tree.files[0].path, module="", args=""),
    )
    hosts_file = Path("hosts.txt")
    with Cluster(hostfile.load(hosts_file), access_beside(hosts_file, "").open) as cluster:
        placement = place_ranks(cluster.hosts, spec)
        made = plan(spec, placement, cluster.survey(), {}, tools())
        deliver(made, cluster, [Contents(spec.tree), Contents(spec.library)], DeliveryStage())


def report(costs: Mapping[int, Mapping[str, Mapping[str, Sequence[Cost]]]], rounds: int) -> str:
    """Return a table for each task: medians of wall, client and host CPU time, by number of hosts."""
    sizes = list(costs)
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores for client and hosts together, load "
        f"{os.getloadavg()[0]:.1f} at the end; medians of {rounds} rounds, contestants in turn. "
        "Seconds: wall / client CPU / CPU of all hosts."
    ]
    for task in costs[sizes[0]]:
        lines += ["", f"| {task} | {' | '.join(f'{size} hosts' for size in sizes)} |"]
        lines.append("| --- |" + " --- |" * len(sizes))
        for who in costs[sizes[0]][task]:
            cells = " | ".join(_medians(costs[size][task][who]) for size in sizes)
            lines.append(f"| {who} | {cells} |")
    return "\n".join(lines)


def _medians(costs: Sequence[Cost]) -> str:
    fields = (field.name for field in dataclasses.fields(Cost))
    return " / ".join(f"{statistics.median(getattr(cost, name) for cost in costs):.1f}" for name in fields)


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 64, 256], help="numbers of hosts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", default="muster:cpu")
    parser.add_argument("--only", default="", help="only contestants whose name has this in it")
    parser.add_argument("--code", type=Path, default=ROOT / "train", help="the folder that is delivered")
    parser.add_argument("--deliver", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deliver:
        deliver_here()
        return
    costs: dict[int, dict[str, dict[str, list[Cost]]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        lab(Path(folder), max(options.sizes), options.image) as made,
    ):
        (made.folder / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
        for size in options.sizes:
            made.only(size)
            for _ in range(options.rounds):
                fresh(made, options.code)
                for task, rows in contestants(made, size).items():
                    for who, words in rows.items():
                        if options.only in who:
                            table = costs.setdefault(size, {}).setdefault(task, {})
                            table.setdefault(who, []).append(cost := measure(words, made))
                            sys.stderr.write(f"{size} hosts, {who}: {cost}\n")
    sys.stdout.write(report(costs, options.rounds) + "\n")


if __name__ == "__main__":
    main()
