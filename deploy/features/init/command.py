"""`muster init`: the files that a project needs besides its program."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ...cli.command import Command
from ...cli.shared import MUSTER
from ...core.errors import UsageError
from ...core.plan.flags import flag
from ...core.wire.files import read_regular

EXAMPLES = MUSTER / "examples"
HOSTS = """\
# The hosts of a launch, one a line: an Open MPI hostfile. The first one is the head.
# slots is the number of ranks there, most often one for each GPU (default: 1).
#
#   node1 slots=8
#   node[02-16] slots=8                 # ranges: node02 ... node16
#   gpu-a slots=4 user=ml port=2222     # as ssh would: -l ml -p 2222
#
# localhost is this machine, without SSH. Replace it by your hosts.
localhost slots=2
"""
IGNORED = ("runs/", ".muster/")
"""The run folders and the cluster's keys: neither belongs in git or on every host."""


@dataclass(frozen=True)
class Init(Command):
    """Write a hosts.txt, a fabfile.py and .gitignore lines into a project.

    Existing content is kept.
    """

    folder: str = flag(".", "the project's folder (default: this one)", takes="positional")
    example: str = flag("", "also copy this example: minimal, gpt, gpt_sharded, parameter_server ...", "NAME")

    def run(self) -> None:
        """Write the files that are missing."""
        programs, folder = _programs(self.example), Path(self.folder)
        if not folder.is_dir():
            raise UsageError(f"{self.folder}: no such folder")
        texts = {"hosts.txt": HOSTS, "fabfile.py": (MUSTER / "fabfile.py").read_text()}
        texts |= {name: (EXAMPLES / name).read_text() for name in programs}
        for name, text in texts.items():
            _say(folder / name, "written" if _write(folder / name, text) else "kept as it is")
        added = _ignore(folder / ".gitignore")
        _say(folder / ".gitignore", f"{' and '.join(added)} added" if added else "kept as it is")
        sys.stdout.write(NEXT)


NEXT = """
next, with your hosts in hosts.txt:
    muster check                # which hosts are fit, and what fixes the others
    muster launch SCRIPT.py     # your program, on every host
"""


def _programs(example: str) -> list[str]:
    """Return the files of an example: its own, and those of the examples that it imports."""
    if not example:
        return []
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    name = example.removesuffix(".py").replace("-", "_")
    if name not in names:
        raise UsageError(f"--example {example}: must be one of {', '.join(names)}")
    text = (EXAMPLES / f"{name}.py").read_text()
    return [f"{name}.py", *(f"{other}.py" for other in names if f"\nfrom {other} import " in text)]


def _write(path: Path, text: str) -> bool:
    """Write a file and return True, unless it exists already, even as a dangling link."""
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return True


def _ignore(path: Path) -> list[str]:
    """Append the lines that are missing from a .gitignore; returns them.

    Not through a symbolic link, which may lead to any file of this user, and which git does not read.
    """
    try:
        content = read_regular(path).decode() if os.path.lexists(path) else ""
        missing = [line for line in IGNORED if not {line, line.rstrip("/")} & {*content.split()}]
        if missing:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o666), "a") as file:
                file.write("\n" if content and not content.endswith("\n") else "")
                file.writelines(f"{line}\n" for line in missing)
    except (OSError, UnicodeDecodeError) as error:
        if path.is_symlink():
            raise UsageError(
                f"{path}: a symbolic link, which git does not read; replace it by a file with the lines "
                f"{' and '.join(IGNORED)}"
            ) from None
        raise UsageError(f"{path}: cannot be changed: {error}") from None
    return missing


def _say(path: Path, what: str) -> None:
    sys.stdout.write(f"{path}: {what}\n")
