"""Real power cuts: an ext4 in a file is shut down without its journal, and mounted again.

This needs root, and a kernel that mounts ext4 from a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.core.wire.durable import sync_file_system
from tests.crashes import WORKS
from tests.launching import ROOT

# ext4's "go down": the journal is not written either (EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH).
SHUTDOWN, WITHOUT_LOG = 0x8004587D, 2
# Does the work, and cuts the power at the given moment; the last moment is when the work is done.
CUTTING = """
import ctypes, fcntl, os, sys
from pathlib import Path
from muster.deploy.core.wire.durable import sync_file_system
from tests.crashes import WORKS, watched
name, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
count = 0
def cut():
    fcntl.ioctl(os.open(folder, os.O_RDONLY), {shutdown}, ({flag}).to_bytes(4, sys.byteorder))
    os._exit(0)
def event(call, what):
    global count
    if count == last:
        cut()
    count += 1
with watched(event):
    WORKS[name].act(folder)
print("done", flush=True)
cut()
"""


class Disks:
    """Mounts disks that may replace files without writing their bytes first, as other file systems do."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        """An empty disk, mounted. Skips the test where this cannot be."""
        image = self._image()
        with image.open("wb") as file:
            file.truncate(32 << 20)
        made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True, check=False)
        if os.geteuid() or made.returncode:
            pytest.skip("needs root and mkfs.ext4")
        with self._mounted(image) as mounted:
            yield mounted

    @contextlib.contextmanager
    def after_cut(self, mounted: Path) -> Iterator[Path]:
        """What a disk has after the power was cut.

        A copy of it: a container that started meanwhile may keep the disk itself mounted.
        """
        image = self._image()
        shutil.copyfile(mounted.with_suffix(".image"), image)
        with self._mounted(image) as copied:
            yield copied

    def _image(self) -> Path:
        self._count += 1
        return self._folder / f"disk{self._count}.image"

    @contextlib.contextmanager
    def _mounted(self, image: Path) -> Iterator[Path]:
        mounted = image.with_suffix("")
        mounted.mkdir()
        words = ["mount", "-o", "loop,noauto_da_alloc", str(image), str(mounted)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("this kernel or container mounts no ext4 from a file")
        try:
            yield mounted
        finally:
            subprocess.run(["umount", mounted], check=True)
            image.unlink()


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


@pytest.mark.soak
def test_the_disk_of_these_tests_loses_what_was_not_synced(disks: Disks) -> None:
    """Else they would show nothing."""
    with disks.new() as disk:
        for name, synced in (("lost", False), ("kept", True)):
            with (disk / f"{name}.new").open("wb") as file:
                file.write(b"bytes")
                file.flush()
                if synced:
                    os.fsync(file.fileno())
            (disk / f"{name}.new").rename(disk / name)
        folder = os.open(disk, os.O_RDONLY)
        os.fsync(folder)
        fcntl.ioctl(folder, SHUTDOWN, WITHOUT_LOG.to_bytes(4, sys.byteorder))
        os.close(folder)
        with disks.after_cut(disk) as cut:
            assert ((cut / "lost").read_bytes(), (cut / "kept").read_bytes()) == (b"", b"bytes")


@pytest.mark.soak
@pytest.mark.parametrize("name", WORKS)
def test_no_power_cut_leaves_wrong_content_on_a_real_disk(disks: Disks, name: str) -> None:
    program = CUTTING.format(shutdown=SHUTDOWN, flag=WITHOUT_LOG)
    moment, done = 0, False
    while not done:
        with disks.new() as disk:
            WORKS[name].prepare(disk)
            sync_file_system(disk)
            words = [sys.executable, "-c", program, name, str(disk), str(moment)]
            act = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
            done = act.stdout == "done\n"
            with disks.after_cut(disk) as cut:
                WORKS[name].check(cut, done)
        moment += 1
    assert moment > 2
