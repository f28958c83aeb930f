"""What is sent to hosts: to each what it lacks, and packed once for all that lack the same."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from muster.deploy.core.connect.requests import STORE, Missing, Prepared, Request
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.job import deliver as deliver_module
from muster.deploy.core.job.deliver import Contents, deliver, preparation_seconds, prepare_for
from muster.deploy.core.job.stages import DeliveryStage
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.plan.source_tree import Edits, Tree, scan
from muster.deploy.core.wire.frames import read_frame, write_frame
from tests.unit.plans import make_plan

STAGE = DeliveryStage()


class Store:
    """A host that lacks some contents."""

    def __init__(self, *missing: str) -> None:
        self.missing, self.stored = list(missing), b""

    host, writer = "node1", SimpleNamespace(written=0)

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Missing:
        return self.ask(request, payload, **words)

    def wait(self, answer: Missing, seconds: float) -> Missing:
        return answer

    def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Missing:
        self.stored = payload or self.stored
        return Missing(tuple(one for one in self.missing if one in words.get("digests", ())))


def test_what_is_sent_to_many_hosts_is_not_copied_for_each() -> None:
    class Stream:
        def __init__(self) -> None:
            self.written: list[bytes] = []

        def write(self, content: bytes, /) -> None:
            self.written.append(content)

        def flush(self) -> None:
            pass

    stream, archive = Stream(), b"x" * 1000
    write_frame(stream, {"do": "store"}, archive)
    assert stream.written[-1] is archive
    assert read_frame(io.BytesIO(b"".join(stream.written))) == ({"do": "store", "size": 1000}, archive)


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Name and content of each member."""
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: cast(IO[bytes], tar.extractfile(member)).read() for member in tar}


class Forgetful:
    """A host whose store has damaged contents: `damaged` has the answers to each request to prepare."""

    host, writer = "node1", SimpleNamespace(written=0)

    def __init__(self, *damaged: tuple[str, ...]) -> None:
        self.damaged, self.asked, self.stored = [*damaged], list[str](), b""

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
        self.asked.append(request.name)
        self.stored = payload or self.stored
        if request.name == "prepare":
            return Prepared(self.damaged.pop(0))
        return Missing(()) if request.name == "missing" else None

    def wait(self, answer: Any, seconds: float) -> Any:
        return answer

    def ask(self, request: Request[Any], payload: bytes = b"", *, seconds: float, **words: Any) -> Any:
        return self.post(request, payload, **words)


def send(plan: LaunchPlan, cluster: object, contents: Sequence[Contents] = ()) -> None:
    contents = contents or [Contents(plan.spec.tree), Contents(plan.spec.library)]
    deliver(plan, cast(Any, cluster), contents, DeliveryStage())


def delivered(folder: Path, *damaged: tuple[str, ...]) -> Forgetful:
    """Deliver the tree of a folder to a host with these answers."""
    plan = make_plan("node1 slots=2", tree=scan(folder))
    host = Forgetful(*damaged)
    cluster = SimpleNamespace(channels={"node1": host}, close=lambda: None)
    send(plan, cluster)
    return host


def test_a_file_that_vanished_before_it_is_sent_is_not_in_the_jobs_folder(tmp_path: Path) -> None:
    class Empty(Forgetful):
        code: Any = None

        def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
            self.code = words.get("code", self.code)
            answer = super().post(request, payload, **words)
            return Missing(tuple(words["digests"])) if request.name == "missing" else answer

    for name in ("train.py", "cache.tmp"):
        (tmp_path / name).write_text(name)
    plan, host = make_plan("node1 slots=2", tree=scan(tmp_path)), Empty(())
    (tmp_path / "cache.tmp").unlink()
    send(plan, SimpleNamespace(channels={"node1": host}, close=lambda: None))
    assert [name for name, *_ in host.code] == ["train.py"]


def test_hosts_get_a_file_as_it_is_when_it_is_sent(tmp_path: Path) -> None:
    class Keeping(Forgetful):
        """A host that keeps what it gets, and says what it lacks."""

        def __init__(self, *held: bytes) -> None:
            super().__init__()
            self.kept = {hashlib.sha256(content).hexdigest(): content for content in held}
            self.code: dict[str, bytes] = {}

        def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Any:
            self.asked.append(request.name)
            if request.name == "missing":
                return Missing(tuple(digest for digest in words["digests"] if digest not in self.kept))
            if request.name == "store":
                self.kept |= unpacked(payload)
            if request.name == "prepare":
                lacking = tuple(digest for _, _, digest, _ in words["code"] if digest not in self.kept)
                self.code = {name: self.kept.get(digest, b"") for name, _, digest, _ in words["code"]}
                return Prepared(lacking)
            return None

    (tmp_path / "train.py").write_text("1")
    (tmp_path / "out.txt").write_text("old")
    plan = make_plan("node[1-2] slots=2", tree=scan(tmp_path))
    (tmp_path / "out.txt").write_text("new")
    contents = [Contents(plan.spec.tree), Contents(plan.spec.library)]
    lacks, has = Keeping(), Keeping(b"old", b"1")
    for host, name in ((lacks, "node1"), (has, "node2")):
        one = dataclasses.replace(plan, hosts=tuple(each for each in plan.hosts if each.host.name == name))
        send(one, SimpleNamespace(channels={name: host}, close=lambda: None), contents)
        assert host.code == {"out.txt": b"new", "train.py": b"1"}
    assert [*contents[0].edits.changed] == ["out.txt"]


def test_a_spare_host_gets_the_contents_and_prepares_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    plan = make_plan("node[1-2] slots=2", tree=scan(tmp_path), np=2, spares=1)
    hosts = {name: Forgetful(()) for name in ("node1", "node2")}
    for name, host in hosts.items():
        host.host = name
    send(plan, SimpleNamespace(channels=hosts, close=lambda: None))
    assert "prepare" in hosts["node1"].asked
    assert {*hosts["node2"].asked} == {"missing"}


def test_a_content_that_a_host_finds_damaged_is_sent_again_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "good.py").write_text("print(2)")
    damaged = scan(tmp_path).files[1].digest
    host = delivered(tmp_path, (damaged,), ())
    assert host.asked[-2:] == ["store", "prepare"]
    assert unpacked(host.stored) == {damaged: b"print(1)"}


def test_a_host_that_loses_a_content_twice_is_named_with_the_file_and_its_disk(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    damaged = scan(tmp_path).files[0].digest
    with pytest.raises(UnfitError, match=r"(?s)node1.*its disk does not keep train.py.*dmesg.*df /home"):
        delivered(tmp_path, (damaged,), (damaged,))


def test_a_host_has_time_to_prepare_in_proportion_to_what_it_prepares(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    small = scan(tmp_path)
    assert preparation_seconds(small, small) < 60
    large = dataclasses.replace(
        small, files=tuple(dataclasses.replace(small.files[0], size=1 << 30) for _ in "1")
    )
    assert preparation_seconds(large, small) > 500


def test_hosts_that_lack_the_same_get_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    tree = scan(tmp_path)
    first, second = (file.digest for file in tree.files)
    packed: list[tuple[str, ...]] = []

    archive = Tree.archive

    def count(self: Tree, digests: Any, edits: Edits) -> bytes:
        packed.append(tuple(digests))
        return archive(self, digests, edits)

    monkeypatch.setattr(Tree, "archive", count)
    contents = Contents(tree)
    stores: Any = [Store(first, second), Store(first, second), Store(), Store(second)]
    for store in stores:
        contents.send(store, STAGE)
    assert packed == [(first, second), (second,)]
    assert [unpacked(store.stored) for store in stores] == [
        {first: b"one", second: b"two"},
        {first: b"one", second: b"two"},
        {},
        {second: b"two"},
    ]


def test_a_host_is_asked_what_it_lacks_once_before_anybody_waits_for_the_answer(tmp_path: Path) -> None:
    class Counting(Store):
        asked: list[str]

        def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Missing:
            self.asked.append(request.name)
            return super().ask(request, payload, **words)

    (tmp_path / "one").write_text("one")
    tree = scan(tmp_path)
    contents, store = Contents(tree), Counting(tree.files[0].digest)
    store.asked = []
    prepare_for([contents], cast(Any, store))
    assert store.asked == ["missing", "load"]
    contents.send(cast(Any, store), STAGE)
    assert store.asked == ["missing", "load", "store"]
    assert unpacked(store.stored) == {tree.files[0].digest: b"one"}


def test_contents_travel_in_archives_of_few_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(Store):
        archives: list[bytes]

        def ask(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Missing:
            if request is STORE:
                self.archives.append(payload)
                return Missing(())
            return Missing((*super().ask(request, payload, **words).missing, "f" * 64))

    monkeypatch.setattr(deliver_module, "ARCHIVE_BYTES", 10)
    for name in ("one", "two", "sixteen"):
        (tmp_path / name).write_text(name * 2)
    store = Keeping(*(file.digest for file in scan(tmp_path).files))
    store.archives = []
    Contents(scan(tmp_path)).send(cast(Any, store), STAGE)
    assert [len(unpacked(archive)) for archive in store.archives] == [1, 1, 1]


def test_contents_that_do_not_shrink_travel_uncompressed(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a line of a program\n" * 500)
    (tmp_path / "weights").write_bytes(random.Random(1).randbytes(10000))  # noqa: S311
    tree = scan(tmp_path)
    sizes = [len(tree.archive([file.digest])) for file in tree.files]
    assert sizes[0] < 1000
    assert tree.archive([tree.files[1].digest])[:2] != b"\x1f\x8b"
