"""The scripts of the image's build: what they compare in a base, and which source archives they accept."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "docker" / "build"
HEADERS = {
    "local/cuda/include/cuda.h": "#define CUDA_VERSION 13000\n",
    "include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 3\n",
    "include/x86_64-linux-gnu/cudnn_version_v9.h": "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 13\n"
    "#define CUDNN_PATCHLEVEL 0\n#define CUDNN_VERSION (CUDNN_MAJOR * 10000)\n",
}
LIBRARIES = ("libcudart.so.13.0.96", "libnccl.so.2.28.3", "libcudnn.so.9.13.0")
ASKED = {"CUDA_RELEASE": "13.0.2", "NCCL_RELEASE": "2.28.3", "CUDNN_RELEASE": "9.13.0", "TARGETARCH": "arm64"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder in place of the /usr of a base of NVIDIA's, with the programs that the script runs."""
    for name, text in HEADERS.items():
        (tmp_path / "usr" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr" / name).write_text(text)
    listed = []
    for name in LIBRARIES:
        (tmp_path / name).touch()
        link = tmp_path / ".".join(name.split(".")[:3])
        link.symlink_to(name)
        listed.append(f"\t{link.name} (libc6,x86-64) => {link}")
    listed.append(f"\tlibnccl-net.so.2 (libc6,x86-64) => {tmp_path}/other.so.9.9.9")
    write_program(tmp_path / "bin/ldconfig", "cat <<'END'\n" + "\n".join(listed) + "\nEND")
    write_program(tmp_path / "bin/python3", "echo 3.12")
    return tmp_path


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def check(base: Path, part: str, **asked: str) -> tuple[int, str]:
    script = (BUILD / "check-base.sh").read_text().replace("/usr/", f"{base}/usr/")
    env = {"PATH": f"{base}/bin:/usr/bin:/bin", **ASKED, **asked}
    done = subprocess.run(
        ("bash", "-c", script, "check-base", part),
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("part", ["devel", "runtime", "python"])
def test_a_base_with_the_versions_asked_for_is_accepted(base: Path, part: str) -> None:
    assert check(base, part, PYTHON_VERSION="3.12") == (0, "")


@pytest.mark.parametrize("part", ["devel", "runtime"])
def test_every_version_that_the_base_has_not_is_named_at_once(base: Path, part: str) -> None:
    status, said = check(base, part, CUDA_RELEASE="13.2.1", NCCL_RELEASE="2.28.9", CUDNN_RELEASE="9.14.0")
    assert status == 1
    assert said.splitlines()[:3] == [
        "==> the base image has CUDA 13.0, and 13.2 is asked for",
        "==> the base image has NCCL 2.28.3, and 2.28.9 is asked for",
        "==> the base image has cuDNN 9.13.0, and 9.14.0 is asked for",
    ]
    assert "name another base, or change docker/versions.json" in said


def test_a_base_without_nccl_is_named(base: Path) -> None:
    (base / "usr/include/nccl.h").unlink()
    assert "the base image has NCCL in no version, and 2.28.3 is asked for" in check(base, "devel")[1]


def test_the_python_and_the_architecture_of_the_base_are_compared(base: Path) -> None:
    assert "has Python 3.12, and 3.13 is asked for" in check(base, "python", PYTHON_VERSION="3.13")[1]
    assert "the architecture riscv64" in check(base, "devel", TARGETARCH="riscv64")[1]


def test_a_library_whose_name_has_one_number_is_left_to_the_proof(base: Path) -> None:
    link = base / "libcudnn.so.9"
    link.unlink()
    link.touch()  # the file of PyPI's package
    assert check(base, "runtime", CUDNN_RELEASE="9.14.0") == (0, "")


def test_a_base_without_cuda_has_nothing_to_compare(base: Path) -> None:
    assert check(base, "devel", CUDA_RELEASE="") == (0, "")


# -- sources --


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fetch(
    folder: Path, address: str, sha256: str, program: str = 'fetch "$1" "$2"'
) -> subprocess.CompletedProcess[str]:
    """Run a program with lib.sh, with these folders in place of /sources and /downloads."""
    text = (BUILD / "lib.sh").read_text().replace("/sources/", f"{folder}/sources/")
    script = f"{text}\n{program}\n"
    return subprocess.run(
        ("bash", "-c", script, "fetch", address, sha256),
        env={"PATH": os.environ["PATH"], "DOWNLOADS": f"{folder}/downloads"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the user, one of downloads, and one in place of an upstream."""
    for name in ("sources", "downloads", "upstream"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_an_archive_is_downloaded_once(folder: Path) -> None:
    upstream, address = folder / "upstream/a.tar.gz", f"file://{folder}/upstream/a.tar.gz"
    upstream.write_text("theirs")
    for _ in range(2):
        done = fetch(folder, address, digest("theirs"))
        assert (done.returncode, done.stdout) == (0, f"{folder}/downloads/a.tar.gz\n"), done.stderr
        upstream.write_text("changed")


def test_a_damaged_download_is_downloaded_again(folder: Path) -> None:
    (folder / "upstream/a.tar.gz").write_text("theirs")
    (folder / "downloads/a.tar.gz").write_text("thei")
    assert fetch(folder, f"file://{folder}/upstream/a.tar.gz", digest("theirs")).returncode == 0


def test_an_archive_of_the_user_is_used_and_checked_too(folder: Path) -> None:
    (folder / "sources/a.tar.gz").write_text("theirs")
    done = fetch(folder, "https://nowhere.invalid/a.tar.gz", digest("theirs"))
    assert done.stdout == f"{folder}/sources/a.tar.gz\n"
    other = fetch(folder, "https://nowhere.invalid/a.tar.gz", digest("other"))
    assert other.returncode == 1
    assert "another file, or damaged" in other.stderr


def test_the_archives_of_a_source_package_are_fetched_with_its_sums(folder: Path) -> None:
    (folder / "upstream/x.orig.tar.xz").write_text("source")
    dsc = (
        "Format: 3.0\nChecksums-Sha1:\n 00 6 y.tar.xz\nChecksums-Sha256:\n "
        f"{digest('source')} 6 x.orig.tar.xz\nFiles:\n 00 6 z.tar.xz\n"
    )
    (folder / "upstream/x.dsc").write_text(dsc)
    done = fetch(folder, f"file://{folder}/upstream/x.dsc", digest(dsc))
    assert (done.returncode, done.stdout) == (0, f"{folder}/downloads/x.dsc\n"), done.stderr
    assert (folder / "downloads/x.orig.tar.xz").read_text() == "source"
    (folder / "upstream/x.orig.tar.xz").write_text("changed")
    (folder / "downloads/x.orig.tar.xz").unlink()
    assert fetch(folder, f"file://{folder}/upstream/x.dsc", digest(dsc)).returncode == 1


def test_a_source_with_another_sum_is_not_unpacked(folder: Path) -> None:
    (folder / "sources/a.tar").write_text("theirs")
    done = fetch(folder, "file:///a.tar", digest("other"), f'unpack "$1" "$2" {folder}/out; echo on')
    assert (done.returncode, done.stdout) == (1, "")
    assert not (folder / "out").exists()


def test_a_source_without_a_confirmed_sum_ends_with_the_remedy(folder: Path) -> None:
    (folder / "sources/a.tar.gz").write_text("theirs")
    done = fetch(folder, "https://nowhere.invalid/a.tar.gz", "unverified")
    assert done.returncode == 1
    assert f"This file has {digest('theirs')}" in done.stderr


def test_a_build_without_a_source_names_the_command(folder: Path) -> None:
    assert "build it with: muster image build" in fetch(folder, "", "").stderr
