"""All commands in the order of the help, and the module of each, which is loaded only when needed.

Loading all modules takes half a second of processor time, so the help of all commands needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from .command import Command

FAMILIES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "To begin": {
        "init": (
            "init",
            "Write a hosts.txt, a fabfile.py and .gitignore lines into a project. Existing content is kept.",
        ),
        "demo": ("practice", "Train on this machine alone: two ranks learn to read handwritten digits."),
        "cluster.up": (
            "practice",
            "Start a practice cluster: three containers of the node image, reached as real hosts are.",
        ),
        "cluster.down": ("practice", "Remove the practice cluster and its keys; the hosts file stays."),
    },
    "Jobs": {
        "launch": (
            "launch",
            "Run a program on every host, keep the logs of its ranks here, and print a verdict.",
        ),
        "status": ("jobs", "List the jobs of this machine and of the hosts, or show one job in detail."),
        "logs": ("jobs", "Print the output of all ranks of a job, in the order in which it came."),
        "attach": (
            "jobs",
            "Show the output of a job from now on, until its end and verdict. Ctrl-C leaves the job running.",
        ),
        "stop": ("jobs", "End a job on every host. A job that is over stays as it is."),
        "report": (
            "view",
            "Write the page of a job, one HTML file: its verdict, time line, metrics, resources and "
            "last lines.",
        ),
        "compare": (
            "view",
            "Compare jobs: differences in code, arguments, environment, versions, hosts and results.",
        ),
    },
    "A job that runs": {
        "top": (
            "top",
            "Show live what every host and rank does: of a job, or of hosts without a job (--hosts).",
        ),
        "stacks": (
            "stacks",
            "Show where in its program every rank of a running job is, with equal ranks together.",
        ),
        "why": (
            "why",
            "Say why a running job stands still or is slow: which ranks wait in what, and for whom.",
        ),
        "eval": (
            "debug",
            "Evaluate an expression in every rank of a running job, with equal answers together.",
        ),
        "debug": (
            "debug",
            "Open a console of Python beside one rank of a running job; with --hold, the debugger pdb in it.",
        ),
    },
    "Hosts": {
        "hosts.scan": (
            "host_list",
            "Show which hosts answer, and what they have: those of the hosts file and of the SSH "
            "configuration.",
        ),
        "hosts.add": (
            "host_list",
            "Add hosts to the hosts file, with slots from what they have. What is in the file stays as "
            "it is.",
        ),
        "check": (
            "check",
            "Check whether every host is fit for a launch; if not, say which host is not and what fixes it.",
        ),
        "setup": (
            "playbooks",
            "Make a cluster of bare hosts: SSH trust, clocks, limits, the training stack.",
        ),
        "verify": (
            "playbooks",
            "Check whether the hosts are still as setup made them. The result is also in "
            ".muster/verify.json.",
        ),
        "rotate-keys": ("playbooks", "Give the cluster a new SSH key; no login fails meanwhile."),
        "teardown": ("playbooks", "Bring the hosts back to how they were before setup."),
    },
    "How fast": {
        "bench.links": (
            "bench",
            "Measure the link between every two hosts, both ways: latency and bandwidth. Slow links are "
            "named.",
        ),
        "bench.collectives": (
            "bench",
            "Time the collective operations over sizes and check their results, as nccl-tests do.",
        ),
        "bench.hosts": (
            "bench",
            "Measure memory, matrices, disk, /dev/shm and a loader's work on every host. Slow hosts are "
            "named.",
        ),
    },
    "Packages": {
        "env.list": (
            "env",
            "List the environments of packages that launches with --requirements have made on the hosts.",
        ),
        "env.remove": (
            "env",
            "Remove an environment of packages from the hosts, or all of them. Those that a job uses stay.",
        ),
        "env.diff": (
            "env",
            "Name what differs between hosts: packages, Python, driver, kernel, limits, variables, "
            "mounts, ...",
        ),
    },
    "The node image": {
        "image.build": (
            "image",
            "Build a target of docker/docker-bake.json, after a check that its versions go together.",
        ),
        "image.check": (
            "image",
            "Run the image's own proof: versions, backends, one libmpi, mpirun and torchrun with two ranks.",
        ),
        "image.sbom": (
            "image",
            "Print the image's bill of materials: every package with its version, as CycloneDX JSON.",
        ),
        "image.push": (
            "image",
            "Copy an image to the engine of every host, without a registry. Only missing layers are sent.",
        ),
    },
    "On every host": {
        "run": (
            "hosts",
            "Run a command on every host, and show equal outputs as one. The highest exit status counts.",
        ),
        "put": ("hosts", "Copy a file or folder to every host; to all hosts or to none."),
        "get": ("hosts", "Copy a file or folder of every host here, as NAME@HOST.SUFFIX."),
        "shell": ("hosts", "Log in to a host as Muster does."),
        "clean": (
            "hosts",
            "Remove the folders of old jobs on the hosts with all their files. Those of running jobs stay.",
        ),
    },
    "Data sets": {
        "data.push": (
            "data",
            "Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME, read-only.",
        ),
        "data.list": ("data", "Show the data sets of every host, and which were changed there."),
        "data.verify": (
            "data",
            "Read every byte of a data set on every host, and name the files that are damaged.",
        ),
        "data.pull": (
            "data",
            "Bring a data set here, from a host that has it, or its shards from all hosts.",
        ),
        "data.remove": ("data", "Remove a data set from every host where no job runs."),
    },
}
"""The families of commands in the help: the module of each command, and the first line of its help."""

MODULES = {name: module for family in FAMILIES.values() for name, (module, _) in family.items()}
"""The module of each command."""


def commands(first: str = "") -> dict[str, Command]:
    """The commands whose name begins with the word `first`, such as image; all commands if there are none."""
    names = [name for name in MODULES if first in {name, name.partition(".")[0]}] or [*MODULES]
    return {name: load(name) for name in names}


def load(name: str) -> Command:
    """A command by its name on the command line: launch, image.build."""
    module = import_module(f".{MODULES[name]}", __package__)
    found: Command = getattr(module, name.rpartition(".")[2].replace("-", "_"))
    return found
