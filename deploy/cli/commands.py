"""All commands in the order of the help, and the module of each, which is imported only when needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module

from .command import Command, Declaration

FAMILIES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "To begin": {
        "init": ("init", "Write a hosts.txt, a fabfile.py and .gitignore lines into a project."),
        "demo": ("practice", "Train on this machine alone: two ranks learn to read handwritten digits."),
        "cluster.up": ("practice", "Start a practice cluster: three containers that are reached as hosts."),
        "cluster.down": ("practice", "Remove the practice cluster and its keys; the hosts file stays."),
        "completion": ("completion", "Print a script that completes commands in bash, zsh or fish."),
    },
    "Jobs": {
        "launch": ("launch", "Run a program on every host, keep the logs of its ranks, print a verdict."),
        "free": ("free", "Show which GPUs are free, and who has the others."),
        "status": ("jobs", "List the jobs of this machine and of the hosts, or show one job in detail."),
        "logs": ("jobs", "Print the output of all ranks of a job, in the order of its arrival."),
        "attach": ("jobs", "Show the output of a job from now on, until its end and verdict."),
        "stop": ("jobs", "End a job on every host. A job that is over stays as it is."),
        "report": ("report", "Write the page of a job: verdict, time line, metrics, resources, last lines."),
    },
    "A job that runs": {
        "top": ("top", "Show live what every host and rank does: of a job, or of hosts (--hosts)."),
        "stacks": ("why", "Show where in its program every rank is, with equal ranks together."),
        "why": ("why", "Explain a hang or a slow job: which ranks wait in what, and for whom."),
        "eval": ("eval", "Evaluate an expression in every rank, with equal answers together."),
        "forward": (
            "forward",
            "Connect a port of this machine to a port of a rank's host: TensorBoard, Jupyter.",
        ),
    },
    "Hosts": {
        "hosts.drain": ("drain", "Put hosts aside: no launch uses them. Running jobs continue."),
        "hosts.undrain": ("drain", "Take drained hosts back."),
        "hosts.drained": ("drain", "Show which hosts are drained, by whom, since when and why."),
        "check": ("check", "Check whether every host is fit for a launch, and name what fixes it."),
        "setup": ("playbooks", "Make a cluster of bare hosts: SSH trust, clocks, limits, training stack."),
        "verify": ("playbooks", "Check whether the hosts are still as setup made them."),
        "rotate-keys": ("playbooks", "Give the cluster a new SSH key; no login fails meanwhile."),
        "venv": (
            "playbooks",
            "Make the Python environment of the stack venv, and nothing else, by a login without root.",
        ),
        "wheelhouse": (
            "playbooks",
            "Fill a folder here with the wheels of the stack venv, for hosts that reach no index.",
        ),
        "teardown": ("playbooks", "Bring the hosts back to how they were before setup."),
    },
    "How fast": {
        "bench.links": ("bench", "Measure latency and bandwidth between every two hosts, both ways."),
        "bench.collectives": ("bench", "Time collective operations over sizes, and check their results."),
        "bench.hosts": ("bench", "Measure memory, matrices, disk and a data loader on every host."),
    },
    "Packages": {
        "env.list": ("env", "List the environments of packages on the hosts (launch --requirements)."),
        "env.remove": ("env", "Remove an environment of packages from the hosts, or all that no job uses."),
    },
    "The node image": {
        "image.build": ("image", "Build a target of docker/docker-bake.json, after a check of its versions."),
        "image.check": ("image", "Run the image's own proof: versions, backends, mpirun and torchrun."),
        "image.push": ("image", "Copy an image to the engine of every host, without a registry."),
    },
    "On every host": {
        "run": ("hosts", "Run a command on every host, and show equal outputs as one."),
        "put": ("hosts", "Copy a file or folder to every host; to all hosts or to none."),
        "get": ("hosts", "Copy a file of every host here, as NAME@HOST.SUFFIX; or what a job wrote."),
        "shell": ("hosts", "Log in to a host as Muster does."),
        "clean": ("hosts", "Remove the folders of old jobs on the hosts. Those of running jobs stay."),
    },
    "Data sets": {
        "data.push": ("data", "Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME."),
        "data.list": ("data", "Show the data sets of every host, and which were changed there."),
        "data.verify": ("data", "Read every byte of a data set on every host, and name damaged files."),
        "data.pull": ("data", "Bring a data set here, from a host that has it, or its shards from all."),
        "data.remove": ("data", "Remove a data set from every host where no job runs."),
    },
}
"""The families of commands in the help: the module of each command, and the first line of its help."""

SUMMARIES = {name: text for family in FAMILIES.values() for name, (_, text) in family.items()}
MODULES = {name: module for family in FAMILIES.values() for name, (module, _) in family.items()}


FIRST_COMMANDS = {
    "init": "start a project: hosts.txt, fabfile.py",
    "demo": "train on this machine alone, to try it",
    "check": "are the hosts fit, and if not, what fixes it",
    "launch SCRIPT": "run a program on every host",
    "status": "the jobs, running and over",
    "logs": "what the ranks printed",
    "top": "hosts and ranks, live",
    "why": "why a job hangs or is slow",
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
    module = import_module(f".{MODULES[name]}", __package__)
    kind: type[Command] = getattr(module, "".join(map(str.title, re.split("[.-]", name))))
    return Declaration(kind)
