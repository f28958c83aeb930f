"""All commands in the order of the help, and the module of each, which is imported only when needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module

from .command import Command, Declaration

_FAMILIES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "To begin": {
        "features.init.command": {
            "init": "Write a hosts.txt, a fabfile.py and .gitignore lines into a project.",
        },
        "features.practice.command": {
            "demo": "Train on this machine alone: two ranks learn to read handwritten digits.",
            "cluster.up": "Start a practice cluster: three containers that are reached as hosts.",
            "cluster.down": "Remove the practice cluster and its keys; the hosts file stays.",
        },
        "cli.completion": {"completion": "Print a script that completes commands in bash, zsh or fish."},
    },
    "Jobs": {
        "cli.launch": {"launch": "Run a program on every host, keep the logs of its ranks, print a verdict."},
        "features.leases.command": {"free": "Show which GPUs are free, and who has the others."},
        "cli.job_options": {
            "status": "List the jobs of this machine and of the hosts, or show one job in detail.",
            "logs": "Print the output of all ranks of a job, in the order of its arrival.",
            "attach": "Show the output of a job from now on, until its end and verdict.",
            "stop": "End a job on every host. A job that is over stays as it is.",
        },
        "features.page.command": {
            "report": "Write the page of a job: verdict, time line, metrics, resources, last lines.",
        },
    },
    "A job that runs": {
        "features.top.command": {
            "top": "Show live what every host and rank of a job does.",
        },
        "features.why.command": {
            "stacks": "Show where in its program every rank is, with equal ranks together.",
            "why": "Explain a hang or a slow job: which ranks wait in what, and for whom.",
        },
        "features.eval.command": {
            "eval": "Evaluate an expression in every rank, with equal answers together.",
        },
        "features.forward.command": {
            "forward": "Connect a port of this machine to a port of a rank's host: TensorBoard, Jupyter.",
        },
    },
    "Hosts": {
        "features.leases.command": {
            "hosts.drain": "Put hosts aside: no launch uses them. Running jobs continue.",
            "hosts.undrain": "Take drained hosts back.",
        },
        "features.check.command": {
            "check": "Check whether every host is fit for a launch, and name what fixes it.",
        },
        "features.setup.command": {
            "setup": "Make a cluster of bare hosts: SSH trust, clocks, limits, training stack.",
            "verify": "Check whether the hosts are still as setup made them.",
            "rotate-keys": "Give the cluster a new SSH key; no login fails meanwhile.",
            "venv": "Make the Python environment of the stack venv alone, by a login without root.",
            "wheelhouse": "Fill a folder here with the wheels of the stack venv, for hosts without an index.",
            "teardown": "Bring the hosts back to how they were before setup.",
        },
    },
    "How fast": {
        "features.bench.command": {
            "bench.links": "Measure latency and bandwidth between every two hosts, both ways.",
            "bench.collectives": "Time collective operations over sizes, and check their results.",
            "bench.hosts": "Measure memory, matrices and disk of every host.",
        },
    },
    "Packages": {
        "features.packages.command": {
            "env.list": "List the environments of packages on the hosts (launch --requirements).",
            "env.remove": "Remove an environment of packages from the hosts, or all that no job uses.",
        },
    },
    "The node image": {
        "features.image.command": {
            "image.build": "Build a target of docker/docker-bake.json.",
            "image.check": "Run the image's own proof: versions, backends, mpirun and torchrun.",
            "image.push": "Copy an image to the engine of every host, without a registry.",
        },
    },
    "On every host": {
        "features.adhoc.command": {
            "run": "Run a command on every host, and show equal outputs as one.",
            "put": "Copy a file or folder to every host; to all hosts or to none.",
            "get": "Copy a file of every host here, as NAME@HOST.SUFFIX; or what a job wrote.",
            "shell": "Log in to a host as Muster does.",
        },
        "features.clean.command": {
            "clean": "Remove the folders of old jobs on the hosts. Those of running jobs stay.",
        },
    },
    "Data sets": {
        "features.data.command": {
            "data.push": "Bring a data set to every host, where ranks find it at $MUSTER_DATA/NAME.",
            "data.list": "Show the data sets of every host, and which were changed there.",
            "data.verify": "Read every byte of a data set on every host, and name damaged files.",
            "data.remove": "Remove a data set from every host where no job runs.",
        },
    },
}
"""The families of the help, the modules of each, and their commands, with the first line of each help."""

FAMILIES: Mapping[str, Mapping[str, str]] = {
    title: {name: text for texts in modules.values() for name, text in texts.items()}
    for title, modules in _FAMILIES.items()
}
SUMMARIES = {name: text for family in FAMILIES.values() for name, text in family.items()}
MODULES = {
    name: module for modules in _FAMILIES.values() for module, names in modules.items() for name in names
}


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
