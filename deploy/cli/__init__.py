"""The commands of `fab`, a file each. The only package that prints or exits.

fab has a core flag --hosts (comma-separated names); a task's own --hosts wins only after the task's name, and
only if it has a default and is not positional. So every task has `hosts`, and says so when it is misused.
"""

from __future__ import annotations

from invoke import Collection

from . import image
from .check import check
from .hosts import clean, get, put, run, shell
from .jobs import attach, logs, status, stop
from .launch import launch
from .stacks import stacks

namespace = Collection(
    *(check, launch),
    *(status, logs, attach, stop, stacks),
    image.commands,
    *(run, put, get, shell, clean),
)
