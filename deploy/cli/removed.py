"""What this release removed: commands, flags and values of flags, each with its replacement.

An entry stays for one release. The names that other programs have for a command stay.
"""

from __future__ import annotations

from collections.abc import Mapping

KEEP = "keep the output of `--json`, and compare it with a later one"
CURL = "use `muster run -- curl -O URL`, or push a folder"
REMOVED: Mapping[str, str] = {
    "image build --cache": "the engine keeps compiled files in a cache mount (docs/image.md)",
    "image sbom": "use `docker run --rm IMAGE cat /usr/share/muster/sbom.cdx.json`",
    "launch --no-defaults": "the command line overrides the values of muster.toml",
    "launch --relock": "delete the lock file, in ~/.cache/muster/locks",
    "launch --sample-every": "leave it out: every host is sampled every 2 seconds",
    "launch --events": "use `tail -F runs/JOB/events.jsonl`",
    "launch --metrics": "use node_exporter, the GPU vendor's exporter and `runs/JOB/events.jsonl`",
    "top --metrics": "use node_exporter and the GPU vendor's exporter",
    **dict.fromkeys(("top --include", "top --exclude"), "use `muster free` and `muster run -- uptime`"),
    "check --html": "use its text or `--json`; `bench links --html` writes heat maps",
    **dict.fromkeys(
        (f"bench collectives --{name}" for name in ("op", "root", "check", "stepbytes")),
        "leave it out; results are checked sums, rank 0 is the root, and sizes grow by --stepfactor",
    ),
    **dict.fromkeys((f"bench {a} --{b}" for a in ("links", "hosts") for b in ("keep", "baseline")), KEEP),
    "launch --slurm-login": "log in to the login node, and launch there",
    "env diff": "use `check`, which names hosts whose stack, kernel or network settings differ",
    "check --bisect": "use `check --bench`, which measures every link and host",
    "data pull": "use `muster get --include HOST '~/.muster/data/NAME' FOLDER`",
    **dict.fromkeys(("data push --most", "data push --sha256"), CURL),
    "hosts drained": "use `muster free`, or read drained.json beside the hosts file",
    "data push --shard": "push another folder to each host, with --include and the same NAME",
    **dict.fromkeys(("data push --most", "data push --sha256"), CURL),
    "hosts add": "write a line such as `node1 slots=8` for each host; `launch --slots gpus` counts GPUs",
    "hosts scan": "use `check`, which shows slots, cores and GPUs of each host",
    "launch --gate": "use `check --bench` before a launch, and `hosts drain` for a slow host",
    "hosts drain --gpu": "drain the host, or choose GPUs with --env CUDA_VISIBLE_DEVICES=0,1,2",
    "hosts undrain --gpu": "use `hosts undrain NAME`, which takes back the host",
    "launch --exclusive": "use `--gpus N` and `--wait`, which lease GPUs; to divide hosts, use --include",
    "launch --grow": "use --max-restarts: a lost host that answers again takes part in the next attempt",
    "launch --timings": "use timings in runs/JOB/result.json",
    "launch --standby": "use --max-restarts with --spares; a new launch resumes from the newest checkpoint",
    "compare": "use any diff of `runs/*/launch.json`, and TensorBoard or W&B for curves",
    "debug": "use `muster eval`, `stacks` or `why`; for an editor see docs/how-to/editor.md",
}
"""`launch --gate` or `compare`, and one sentence that names what to use instead."""


def answers(names: str, answer: str) -> Mapping[str, str]:
    """The same answer for each of the names."""
    return dict.fromkeys(names.split(), answer)


OTHER_NAMES: Mapping[str, str] = {
    **answers(
        "ls list ps jobs queue squeue history sacct", "status` lists the jobs, `muster top` shows one live"
    ),
    **answers("watch monitor dashboard ui htop", "top` shows every host and rank, live"),
    **answers("show info describe inspect", "status JOB` shows a job, `muster report JOB` writes its page"),
    **answers("kill cancel scancel abort terminate rm delete remove", "stop JOB` ends a job on every host"),
    **answers("tail log output cat", "logs JOB -f` follows what the ranks print"),
    **answers("trace dump backtrace py-spy", "stacks JOB` shows where every rank is in its program"),
    **answers(
        "ssh login connect", "shell HOST` logs in to a host, `muster run -- COMMAND` runs a command on all"
    ),
    **answers("exec pdsh sh bash", "run -- COMMAND` runs a command on every host"),
    **answers(
        "nodes sinfo machines doctor test ping", "check` tests every host, and shows its cores and GPUs"
    ),
    **answers(
        "gpus gpu nvidia-smi", "free` shows the GPUs that are free, `muster run -- nvidia-smi` all of them"
    ),
    **answers(
        "cp scp rsync copy sync push upload pull fetch download",
        "put PATH TO` copies to every host, `muster get PATH` from them",
    ),
    **answers(
        "submit sbatch start train srun torchrun mpirun mpiexec python python3 accelerate deepspeed",
        "launch SCRIPT` runs a program on every host",
    ),
    **answers("restart resume rerun retry", "launch --max-restarts N` starts a job again after a failure"),
    **answers("prune cleanup gc", "clean` removes the folders of old jobs on the hosts"),
    **answers(
        "tensorboard jupyter tunnel", "forward JOB PORT` connects a port of this machine to a rank's host"
    ),
    **answers("new create config", "init` writes a hosts file into this folder"),
    **answers("install provision bootstrap", "setup` installs on the hosts what they lack"),
    "version": "--version` prints the versions",
}
"""Names that other programs have for a command: after `muster `, what to type, and what it does."""


def replacement(what: str) -> str:
    """The message about a removed command or flag; empty for anything else."""
    return f"{what} was removed: {REMOVED[what]}" if what in REMOVED else ""


def removed_from(command: str) -> Mapping[str, str]:
    """The removed flags of a command, each with the message about it."""
    before = f"{command} --"
    flags = (what.removeprefix(before) for what in REMOVED if what.startswith(before))
    return {flag: f"--{flag} was removed: {REMOVED[before + flag]}" for flag in flags}
