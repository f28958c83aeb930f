"""What hostile words, hosts and output try, and the outcome.

Elsewhere: reports that break the protocol and shell requests beyond the job (test_execute.py), host keys
(test_ssh.py, tests/cluster), layers and users of the image (tests/cluster/test_image.py).
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from muster.deploy.cli import option_values as request
from muster.deploy.cli import rank_program as launch_program
from muster.deploy.core.connect.bootstrap import GREETING
from muster.deploy.core.connect.channel import MOST_LINE, Channel
from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import Lost
from muster.deploy.core.connect.requests import FACTS
from muster.deploy.core.connect.transports.ssh_config import resolve
from muster.deploy.core.decode import MALFORMED
from muster.deploy.core.errors import HostError, HostfileError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import Program
from muster.deploy.core.text.screen import Screen
from muster.deploy.core.text.terminal import harmless_lines
from muster.deploy.core.wire.files import Entry
from muster.deploy.core.wire.frames import read_frame
from muster.deploy.core.wire.store import Store
from muster.deploy.features.adhoc.wire import append, complete
from tests.launching import make_project
from tests.unit.plans import NODE, make_plan

EVIL = ("$(touch owned)", "`touch owned`", "; touch owned", "a\nb", "'\"\\", "-c", "\x1b[2J")


# ---- words of the user, or of a file that somebody gave to the user ---------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "-oProxyCommand=reboot",
        "$(reboot)",
        "`reboot`",
        "a;reboot",
        "../../etc",
        "a/b",
        "a\x1b[2J",
        "node1 user=-oProxyCommand=x",
        "node1 user=a;b",
        "node1 addr=$(reboot)",
        "node1 addr=fe80::1%$(reboot)",
        "fe80::1%$(reboot)",
        "fe80::1%;reboot",
        "fe80::1%-oProxyCommand=x",
        "fe80::1%",
        "node1 port=22;reboot",
        "node[1-999999999]",
    ],
)
def test_a_hosts_file_holds_names_and_nothing_else(line: str) -> None:
    with pytest.raises(HostfileError) as caught:
        hostfile.parse(line)
    assert "\x1b" not in harmless_lines(str(caught.value))


def test_ssh_takes_no_host_for_an_option(tmp_path: Path) -> None:
    (host,) = hostfile.parse("node1")
    config = tmp_path / "config"
    config.write_text("")
    assert resolve(host, config).hostname == "node1"


@pytest.mark.parametrize("word", EVIL)
def test_words_of_a_command_line_reach_python_as_they_are(word: str, tmp_path: Path) -> None:
    plan = make_plan("node1 slots=1", program=Program(module="train", args=(word,)))
    command = plan.hosts[0].command
    assert command is not None
    assert command[-1] == word
    printed = ("/bin/sh", "-c", f"printf %s {shlex.join(command[-1:])}")
    assert subprocess.run(printed, cwd=tmp_path, capture_output=True, check=True).stdout.decode() == word
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["-c", "-m.py", "$(touch owned).py", "a b.py", "it's.py", "a\nb.py"])
def test_a_script_is_a_file_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project").path
    (project / name).write_text("print('ran')")
    program = launch_program.program_of(scan(project), project, script=name, module="", args="")
    argv = [sys.executable, *program.argv(abort_with_mpi=False)]
    assert subprocess.run(argv, cwd=project, capture_output=True, check=True).stdout == b"ran\n"
    assert not (project / "owned").exists()


@pytest.mark.parametrize("script", ["../secret.py", "/etc/passwd", "link.py"])
def test_a_script_outside_of_the_tree_does_not_travel(script: str, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project").path
    (tmp_path / "secret.py").write_text("")
    (project / "link.py").symlink_to(tmp_path / "secret.py")
    with pytest.raises(UsageError, match="outside"):
        launch_program.program_of(scan(project), project, script=script, module="", args="")


# ---- secrets ----------------------------------------------------------------------------------------------


def test_a_secret_is_in_no_command_plan_or_file_of_the_driver(tmp_path: Path) -> None:
    settings = ["WHIMSY", "HF_TOKEN=hf_secret", "MY_API_KEY=hf_secret", "GREETING=hello"]
    plan = make_plan(
        "node[1-2] slots=2",
        env=request.environment(settings, {"WHIMSY": "hf_secret"}),
        hidden=request.taken_from_here(settings),
    )
    assert plan.hosts[0].env["WHIMSY"] == "hf_secret"
    folder = RunFolder(tmp_path, "job")
    folder.begin(plan)
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "GREETING=hello" in written
    assert "hf_secret" not in written + str(plan) + repr([host.command for host in plan.hosts])
    assert not any("hf_secret" in file.text for host in plan.hosts for file in host.files)


def test_the_folder_of_a_run_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = RunFolder(tmp_path / "runs", "job")
        folder.begin(make_plan("node1"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


# ---- hosts ------------------------------------------------------------------------------------------------


class Pipe:
    """What a host says, to the end."""

    remote = True

    def __init__(self, said: bytes) -> None:
        self.reader, self.writer = io.BytesIO(GREETING + said), cast(Any, Mock(written=0))

    def last_words(self, printed: str = "") -> LostError:
        return LostError("gone")

    def close(self, *, patient: bool = True) -> None:
        pass


@pytest.mark.parametrize(
    "said",
    [
        b"\0" * 100,
        b"[]\n",
        b"{" * 100_000 + b"\n",
        b'{"reply": 77}\n',
        b'{"reply": {}}\n',
        b'{"event": "output", "size": -1}\n' + b"x" * 100,
        b'{"event": "output", "size": 99999999999}\n',
        b'{"event": "output", "size": "1"}\n',
    ],
)
def test_what_is_no_frame_ends_the_line_and_nothing_else(said: bytes) -> None:
    events = Inbox()
    channel = Channel("node1", Pipe(said), events)
    with pytest.raises(LostError, match=r"gone|protocol error"):  # in time, that is
        channel.ask(FACTS, seconds=60)
    assert isinstance(events.get(timeout=60).report, Lost)


def test_all_who_wait_for_a_keeper_hear_its_last_words() -> None:
    class Ending(Pipe):
        words = iter([LostError("out of memory"), LostError("no message")])

        def last_words(self, printed: str = "") -> LostError:
            return next(self.words)

    channel = Channel("node1", Ending(b""), Inbox())
    for _ in range(3):
        with pytest.raises(LostError, match="out of memory"):
            channel.ask(FACTS, seconds=60)


def test_an_endless_line_is_not_taken_in() -> None:
    class Endless:
        asked = 0

        def readline(self, size: int = -1, /) -> bytes:
            self.asked = size
            return b"x" * size

        def read(self, size: int, /) -> bytes:
            return b""

    endless = Endless()
    with pytest.raises(ValueError, match="longer than"):
        read_frame(endless, 1000)
    assert endless.asked == 1000
    assert MOST_LINE <= 1 << 23


@pytest.mark.parametrize(
    "lie",
    [
        {"home": 7},
        {"cores": "many"},
        {"addresses": "10.0.0.1"},
        {"addresses": ["fe80::1%$(x)"]},
        {"interfaces": ["eth0"]},
        {"mpi": []},
    ],
)
def test_facts_that_make_no_sense_are_refused(lie: dict[str, Any]) -> None:
    honest = json.loads(json.dumps(NODE.__dict__))
    with pytest.raises(MALFORMED):
        FACTS.read({**honest, **lie})


def test_what_a_host_says_of_itself_cannot_drive_the_terminal(tmp_path: Path) -> None:
    plan = make_plan("node1", launcher="torchrun", facts={"node1": {"torch": "2\x1b]0;owned\x07\ud800"}})
    stream = io.StringIO()
    Screen(stream).say(plan.title)
    RunFolder(tmp_path, "job").begin(plan)  # and a lone surrogate, which no file can hold, stops nothing
    assert "\x1b" not in stream.getvalue()
    assert "\x1b" not in harmless_lines(str(HostError("host.failed", "No such \x1b[2J file")))


@pytest.mark.parametrize("name", ["../../../.bashrc", "/etc/cron.d/x", "ab"])
def test_content_is_stored_by_hash(name: str, tmp_path: Path, archive_of: Callable[..., bytes]) -> None:
    with pytest.raises(OSError, match="damaged"):
        Store(tmp_path / "store").add(archive_of(name, b"evil"))
    assert not list(tmp_path.rglob("*.bashrc"))


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "a/../../out"])
def test_what_a_host_puts_into_a_folder_stays_in_it(path: str, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    with pytest.raises(ValueError, match="outside of the folder"):
        append(str(draft), path, b"x")
    for entry in (Entry(path, "folder"), Entry("link", "link", link=path)):
        with pytest.raises(ValueError, match="outside of the folder"):
            complete(str(draft), [entry])
    assert list(tmp_path.rglob("*")) == [draft]


def test_nothing_is_written_through_a_link_that_a_host_names(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    append(str(draft), "link/x", b"x")
    with pytest.raises(FileExistsError):
        complete(str(draft), [Entry("link", "link", link="elsewhere")])
    # From its own place `up` leads to the draft, and `up/out` out of it.
    links = [Entry("a/up", "link", link=".."), Entry("a/up/out", "link", link="../../x")]
    with pytest.raises(ValueError, match="through another link"):
        complete(str(draft), [Entry("a", "folder"), *links])


LINKS_OUT = [  # `b` is the folder itself, so `b/..` is the one around it
    [Entry("b", "link", link="."), Entry("u", "link", link="b/..")],
    [Entry("b", "link", link="."), Entry("u", "link", link="b/../secret")],
    [Entry("d", "folder"), Entry("d/b", "link", link=".."), Entry("u", "link", link="d/b/../secret")],
    [Entry("u", "link", link="./b//../secret"), Entry("b", "link", link=".")],
]


@pytest.mark.parametrize("entries", LINKS_OUT)
def test_no_link_leads_out_of_its_folder_through_another(entries: list[Entry], tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    with pytest.raises(ValueError, match="through another link"):
        complete(str(draft), entries)
    assert not list(draft.rglob("*"))


@pytest.mark.parametrize("kind", ["bogus", "", "FILE"])
@pytest.mark.parametrize("path", ["u/secret", "secret"])
def test_a_host_changes_no_mode_outside_of_its_folder(kind: str, path: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "u").symlink_to("..")  # however it came to be there
    (draft / "secret").symlink_to(secret)
    with pytest.raises(ValueError, match="neither file, folder nor link"):
        complete(str(draft), [Entry(path, kind, 0o777)])
    empty = hashlib.sha256(b"").hexdigest()
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        complete(str(draft), [Entry(path, "file", 0o777, digest=empty)])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["", ".", "a/.", "a//b", "./a"])
def test_what_a_host_puts_into_a_folder_has_one_name(path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a path in the folder"):
        complete(str(tmp_path), [Entry(path, "folder")])


def test_a_folder_arrives_with_its_links_and_modes(tmp_path: Path) -> None:
    entries = [
        Entry("sub", "folder", 0o555),
        Entry("sub/lib.so", "link", link="lib.so.1"),
        Entry("sub/lib.so.1", "link", link="../lib.so.1.2"),
        Entry("lib.so.1.2", "file", 0o640, digest=hashlib.sha256(b"x").hexdigest()),
    ]
    append(str(tmp_path), "lib.so.1.2", b"x")
    complete(str(tmp_path), entries)
    assert (tmp_path / "sub" / "lib.so").read_text() == "x"
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("sub", "lib.so.1.2")]
    assert modes == [0o555, 0o640]


@pytest.fixture
def archive_of() -> Callable[..., bytes]:
    import tarfile

    def make(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    return make


# -- no rank unpickles what another rank, or another program, wrote: that would run its code --


ROOT = Path(__file__).parents[2]
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "torch.distributed.rpc"}
# torch.distributed's, all of which pickle; mpi4py's own, whose names in capitals move bytes.
OBJECTS = ("_object", "_object_list", "objects_from_bytes")
OF_MPI = {
    *("bcast", "gather", "allgather", "scatter", "alltoall", "reduce", "allreduce", "scan", "exscan"),
    *("send", "recv", "isend", "irecv", "bsend", "ssend", "issend", "sendrecv", "mprobe", "improbe"),
}
# Both read and write pickles; torch.distributed.checkpoint sends them to the other ranks as well.
CHECKPOINTS = {"save", "load", "async_save", "save_state_dict", "load_state_dict"}
ALLOWED = {
    ("train/checkpoint/files.py", "pickle"): "for the name of the error that torch.load raises",
    ("train/checkpoint/shards.py", "pickle"): "the same",
    ("train/mpi_backend/library.py", "py_object"): "a reference of ctypes, which moves nothing",
    ("examples/parameter_server.py", "torch.distributed.rpc"): "shows torch's RPC, made of such calls",
}


def found(path: Path) -> Iterator[tuple[str, int]]:
    """What a file has of the names above, each with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from ((name, getattr(node, "lineno", 0)) for name in names if name in MODULES)
        if isinstance(node, (ast.Attribute, ast.Name)):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name.endswith(OBJECTS) or (name in {"eval", "exec"} and isinstance(node, ast.Name)):
                yield name, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _calls(node, ast.unparse(node.func.value), node.func.attr)


def _calls(node: ast.Call, on: str, name: str) -> Iterator[tuple[str, int]]:
    if name in OF_MPI and ("comm" in on.lower() or "MPI" in on):
        yield f"{on}.{name}", node.lineno
    if name in CHECKPOINTS and on in {"dcp", "checkpoint", "torch.distributed.checkpoint"}:
        yield f"{on}.{name}", node.lineno
    safe = [word.value for word in node.keywords if word.arg == "weights_only"]
    if (on, name) == ("torch", "load") and not (safe and ast.unparse(safe[0]) == "True"):
        yield "torch.load", node.lineno


FILES = [path for folder in ("train", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_nothing_unpickles() -> None:
    here = {path: str(path.relative_to(ROOT)) for path in FILES}
    uses = [(here[path], what, line) for path in FILES for what, line in found(path)]
    assert [use for use in uses if use[:2] not in ALLOWED] == []


def test_every_exception_is_still_needed() -> None:
    there = {(str(path.relative_to(ROOT)), what) for path in FILES for what, _ in found(path)}
    assert there == {*ALLOWED}


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from torch.distributed import rpc", "dist.all_gather_object(a, b)", "eval(text)"),
        *(
            "from torch.distributed import broadcast_object_list as send\nbroadcast_object_list",
            "comm.bcast(1)",
        ),
        *("self._comm.allgather(1)", "MPI.COMM_WORLD.recv()", "torch.load(path)", "dcp.load(state)"),
        "torch.load(path, weights_only=False)",
    ],
)
def test_each_of_these_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "program.py").write_text(line)
    assert [*found(tmp_path / "program.py")]
