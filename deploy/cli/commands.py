"""All commands in the order of the help, and the module of each, which is imported only when needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module

from .command import Command, Declaration

FAMILIES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "To begin": {
        "init": (
            "features.init.command",
            "Write a hosts.txt, a fabfile.py and .gitignore lines into a project.",
        ),
        "demo": (
            "features.practice.command",
            "Train on this machine alone: two ranks learn to read handwritten digits.",
        ),
        "cluster.up": (
            "features.practice.command",
            "Start a practice cluster: three containers that are reached as hosts.",
        ),
        "cluster.down": (
            "features.practice.command",
            "Remove the practice cluster and its keys; the hosts file stays.",
        ),
        "completion": ("cli.completion", "Print a script that completes commands in bash, zsh or fish."),
    },
    "Jobs": {
        "launch": ("cli.launch", "Run a program on every host, keep the logs of its ranks, print a verdict."),
        "free": ("features.leases.command", "Show which GPUs are free, and who has the others."),
        "status": (
            "cli.job_options",
            "List the jobs of this machine and of the hosts, or show one job in detail.",
        ),
        "logs": ("cli.job_options", "Print the output of all ranks of a job, in the order of its arrival."),
        "attach": ("cli.job_options", "Show the output of a job from now on, until its end and verdict."),
        "stop": ("cli.job_options", "End a job on every host. A job that is over stays as it is."),
        "report": (
            "features.page.command",
            "Write the page of a job: verdict, time line, metrics, resources, last lines.",
        ),
    },
    "A job that runs": {
        "top": (
            "features.top.command",
            "Show live what every host and rank does: of a job, or of hosts (--hosts).",
        ),
        "stacks": (
            "features.why.command",
            "Show where in its program every rank is, with equal ranks together.",
        ),
        "why": (
            "features.why.command",
            "Explain a hang or a slow job: which ranks wait in what, and for whom.",
        ),
        "eval": (
            "features.eval.command",
            "Evaluate an expression in every rank, with equal answers together.",
        ),
        "forward": (
            "features.forward.command",
            "Connect a port of this machine to a port of a rank's host: TensorBoard, Jupyter.",
        ),
    },
    "Hosts": {
        "hosts.drain": (
            "features.leases.command_drain",
            "Put hosts aside: no launch uses them. Running jobs continue.",
        ),
        "hosts.undrain": ("features.leases.command_drain", "Take drained hosts back."),
        "hosts.drained": (
            "features.leases.command_drain",
            "Show which hosts are drained, by whom, since when and why.",
        ),
        "check": (
            "features.check.command",
            "Check whether every host is fit for a launch, and name what fixes it.",
        ),
        "setup": (
            "features.setup.command",
            "Make a cluster of bare hosts: SSH trust, clocks, limits, training stack.",
        ),
        "verify": ("features.setup.command", "Check whether the hosts are still as setup made them."),
        "rotate-keys": (
            "features.setup.command",
            "Give the cluster a new SSH key; no login fails meanwhile.",
        ),
        "venv": (
            "features.setup.command",
            "Make the Python environment of the stack venv, and nothing else, by a login without root.",
        ),
        "wheelhouse": (
            "features.setup.command",
            "Fill a folder here with the wheels of the stack venv, for hosts that reach no index.",
        ),
        "teardown": ("features.setup.command", "Bring the hosts back to how they were before setup."),
    },
    "How fast": {
        "bench.links": (
            "features.bench.command",
            "Measure latency and bandwidth between every two hosts, both ways.",
        ),
        "bench.collectives": (
            "features.bench.command",
            "Time collective operations over sizes, and check their results.",
        ),
        "bench.hosts": (
            "features.bench.command",
            "Measure memory, matrices, disk and a data loader on every host.",
        ),
    },
    "Packages": {
        "env.list": (
            "features.packages.command",
            "List the environments of packages on the hosts (launch --requirements).",
        ),
        "env.remove": (
            "features.packages.command",
            "Remove an environment of packages from the hosts, or all that no job uses.",
        ),
    },
    "The node image": {
        "image.build": (
            "features.image.command",
            "Build a target of docker/docker-bake.json, after a check of its versions.",
        ),
        "image.check": (
            "features.image.command",
            "Run the image's own proof: versions, backends, mpirun and torchrun.",
        ),
        "image.push": (
            "features.image.command",
            "Copy an image to the engine of every host, without a registry.",
        ),
    },
    "On every host": {
        "run": ("features.adhoc.command", "Run a command on every host, and show equal outputs as one."),
        "put": ("features.adhoc.command", "Copy a file or folder to every host; to all hosts or to none."),
        "get": (
            "features.adhoc.command",
            "Copy a file of every host here, as NAME@HOST.SUFFIX; or what a job wrote.",
        ),
        "shell": ("features.adhoc.command", "Log in to a host as Muster does."),
        "clean": (
            "features.adhoc.command",
            "Remove the folders of old jobs on the hosts. Those of running jobs stay.",
        ),
    },
    "Data sets": {
        "data.push": (
            "features.data.command",
            "Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME.",
        ),
        "data.list": (
            "features.data.command",
            "Show the data sets of every host, and which were changed there.",
        ),
        "data.verify": (
            "features.data.command",
            "Read every byte of a data set on every host, and name damaged files.",
        ),
        "data.pull": (
            "features.data.command",
            "Bring a data set here, from a host that has it, or its shards from all.",
        ),
        "data.remove": ("features.data.command", "Remove a data set from every host where no job runs."),
    },
}
"""The families of commands in the help: the module of each command, and the first line of its help."""

SUMMARIES = {name: text for family in FAMILIES.values() for name, (_, text) in family.items()}
MODULES = {name: module for family in FAMILIES.values() for name, (module, _) in family.items()}


FIRST_COMMANDS = {
    "init": "start a project: hosts.txt, fabfile.py",
    "demo": "train on this machine alone, to try it",
    "check": "test whether the hosts are ready, and name what to fix",
    "launch SCRIPT": "run a program on every host",
    "status": "list the jobs that run, and the last that ended",
    "logs": "print the output of a job",
    "top": "watch the hosts and ranks of a job, live",
    "why": "explain why a job hangs or is slow",
    "stop JOB": "end a job on every host",
    "run COMMAND": "run a command on every host",
}
"""The most used commands and their purposes."""


def commands(first: str = "") -> dict[str, Declaration]:
    """The commands whose name begins with `first`, such as image; all commands if none does."""
    names = [name for name in MODULES if first in {name, name.partition(".")[0]}] or [*MODULES]
    return {name: load(name) for name in names}


def load(name: str) -> Declaration:
    """A command by its name on the command line: launch, image.build."""
    module = import_module(f"..{MODULES[name]}", __package__)
    kind: type[Command] = getattr(module, "".join(map(str.title, re.split("[.-]", name))))
    return Declaration(kind)
