"""Every command, and the families in which help shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invoke import Collection

from . import image, practice
from .check import check
from .hosts import clean, get, put, run, shell
from .init import init
from .jobs import attach, logs, status, stop
from .launch import launch
from .playbooks import rotate_keys, setup, teardown, verify
from .stacks import stacks

namespace = Collection(
    *(init, practice.demo, practice.cluster),
    *(setup, verify, rotate_keys, teardown),
    *(check, launch),
    *(status, logs, attach, stop, stacks),
    image.commands,
    *(run, put, get, shell, clean),
)

FAMILIES: Mapping[str, Sequence[str]] = {
    "To begin": ("init", "demo", "cluster.up", "cluster.down"),
    "Jobs": ("launch", "status", "logs", "attach", "stop", "stacks"),
    "Hosts": ("check", "setup", "verify", "rotate-keys", "teardown"),
    "The node image": ("image.build", "image.check", "image.push"),
    "On every host": ("run", "put", "get", "shell", "clean"),
}
