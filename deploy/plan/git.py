"""The only call of git: it reads a repository, and runs nothing that the repository names.

A tree may come from elsewhere with its `.git`, such as an unpacked archive. git would obey the settings in
there: `core.fsmonitor` and hooks are commands, a missing object is fetched by a command of `remote.*` (file
and ext transports run one too), `core.worktree` leads to another folder.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from ..errors import UsageError

# Given on the command line, they come after every file of settings, and after what such a file includes.
# No setting that ls-files reads names any other command: filters and textconv belong to the content of files.
_HARMLESS = {
    "core.fsmonitor": "",  # empty: git before 2.36 would run a program called `false`
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "core.askPass": "",
    "core.pager": "cat",
    "credential.helper": "",
    "diff.external": "",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
}
SECONDS = 60
# They tell git of another repository than that of the folder.
_OF_ONE_REPOSITORY = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
}


def git_root(place: Path) -> Path | None:
    """The work tree that `place` is in: the next folder with a `.git`; None if there is none."""
    here = place.resolve()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)


def git(root: Path, *arguments: str) -> bytes:
    """What git says of the repository of a work tree; `UsageError` with its words if it fails."""
    settings = [word for name, value in _HARMLESS.items() for word in ("-c", f"{name}={value}")]
    argv = ["git", "-C", str(root), "--no-pager", "--no-optional-locks", *settings, *arguments]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(root),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        text, status = f"no answer in {SECONDS} s; is the folder huge, or its file system gone?", 1
    except OSError as error:
        text, status = f"git: {error.strerror}", 1
    else:
        text, status = done.stderr.decode(errors="replace").strip(), done.returncode
    # It may list what it could read, say that there is more, and end with 0.
    if status or re.search("^(error|fatal):", text, re.MULTILINE):
        raise UsageError(
            f"{root} is a git repository, and git has to say which files belong to it, but fails:\n{text}"
        )
    return done.stdout


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ONE_REPOSITORY}
    return kept | {
        "GIT_WORK_TREE": str(root),  # whatever core.worktree says
        "GIT_CEILING_DIRECTORIES": str(root.parent),  # a broken repository is not that of a folder above
        "GIT_ALLOW_PROTOCOL": "",  # a repository's protocol.NAME.allow is stronger than protocol.allow
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
