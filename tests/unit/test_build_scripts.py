"""The scripts of the image's build: what they compare in a base, and which source archives they accept."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from muster.deploy.features.image.image_versions import load

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


# -- the bill of materials of an image (docker/sbom.py), made of a few files and programs --


ROOT = Path(__file__).parents[2]
DPKG = """#!/bin/sh
printf 'libucx0:amd64\\t1.18.1+ds-2\\tamd64\\tucx\\n'
printf 'python3-torch\\t2.6.0+dfsg-7\\tamd64\\tpytorch\\n'
"""
METADATA = "Metadata-Version: 2.1\nName: Typing_Extensions\nVersion: 4.15.0\n"


@pytest.fixture
def sbom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, in an image of which `tmp_path` is what was compiled."""
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "docker" / "sbom.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dpkg-query").write_text(DPKG)
    (tmp_path / "bin/dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(module, "PREFIX", f"{tmp_path}/")
    monkeypatch.setattr(module, "release", lambda: {"ID": "debian", "VERSION_ID": "13"})
    monkeypatch.setattr(module.sys, "path", [str(tmp_path / "packages"), *module.sys.path])
    return module


def test_packages_have_own_names(sbom: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages/typing_extensions-4.15.0.dist-info").mkdir(parents=True)
    (tmp_path / "packages/typing_extensions-4.15.0.dist-info/METADATA").write_text(METADATA)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libmpi.so").touch()
    monkeypatch.setenv("FLAVOR", "cuda")
    monkeypatch.setenv("OPENMPI_VERSION", "5.0.10")
    monkeypatch.setenv("UCX_VERSION", "1.20.1")  # the distribution's here: nothing was compiled
    bill = json.loads(json.dumps(sbom.bill()))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == "cuda"
    assert [part.get("purl", part["name"]) for part in bill["components"]] == [
        "debian",
        "pkg:deb/debian/libucx0@1.18.1%2Bds-2?arch=amd64&distro=debian-13&upstream=ucx",
        "pkg:deb/debian/python3-torch@2.6.0%2Bdfsg-7?arch=amd64&distro=debian-13&upstream=pytorch",
        "pkg:generic/openmpi@5.0.10",
        "pkg:pypi/typing-extensions@4.15.0",
    ]


def test_the_build_of_an_image_writes_it_where_the_page_says() -> None:
    place = "/usr/share/muster/sbom.cdx.json"
    assert f"cat {place}" in (ROOT / "docs" / "image.md").read_text()
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert f"python3 /usr/libexec/muster/sbom >{place}" in text
    assert "COPY docker/sbom.py /usr/libexec/muster/sbom\n" in text


# -- what the image's recipe does that no build here shows: what of CUDA reaches the image that runs --


DOCKER = ROOT / "docker"
# Libraries that torch is linked to, as ldd prints them in NVIDIA's image; the last is the driver's.
LDD = """\
\tlibtorch_cpu.so => /install/usr/local/lib/python3.12/dist-packages/torch/lib/libtorch_cpu.so (0x1)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)
\tlibopenblas.so.0 => /usr/lib/x86_64-linux-gnu/libopenblas.so.0 (0x3)
\tlibcupti.so.13 => /usr/local/cuda/lib64/libcupti.so.13 (0x4)
\tlibcudart.so.13 => /usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13 (0x5)
\tlibmpi.so.40 => /usr/local/lib/libmpi.so.40 (0x6)
\tlibcuda.so.1 => /usr/lib/x86_64-linux-gnu/libcuda.so.1 (0x7)
"""
PACKAGES = {
    "/lib/x86_64-linux-gnu/libc.so.6": "libc6:amd64",
    "/usr/lib/x86_64-linux-gnu/libopenblas.so.0": "libopenblas0-pthread:amd64",
    "/usr/local/cuda/lib64/libcupti.so.13": "cuda-cupti-13-0",
    "/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13": "cuda-cudart-13-0",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "libnvidia-compute-580:amd64",
}
PROGRAMS = {
    "find": f"cat <<'END'\n{LDD}END",
    "realpath": 'printf "%s\\n" "$@"',
    "dpkg-query": 'shift; for path; do case "$path" in\n'
    + "\n".join(f'{path}) echo "{package}: {path}" ;;' for path, package in PACKAGES.items())
    + "\nesac; done",
}


def test_the_image_that_runs_has_cudas_libraries_that_torch_is_linked_to(tmp_path: Path) -> None:
    script = (DOCKER / "build/libraries.sh").read_text()
    pipeline = script.replace("/install/libraries.txt", f"{tmp_path}/libraries.txt")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(("bash", "-euo", "pipefail", "-c", pipeline), env=env, check=True, timeout=60)
    wanted = ["cuda-cudart-13-0", "cuda-cupti-13-0", "libc6", "libopenblas0-pthread"]
    assert (tmp_path / "libraries.txt").read_text().splitlines() == wanted


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("\tlibcupti.so.13 => not found", "libcupti.so.13"),
        ("\tlibcuda.so.1 => not found", ""),
        ("\tlibnvidia-ml.so.1 => not found", ""),
        ("\tlibc.so.6 => /lib/libc.so.6 (0x1)", ""),
    ],
)
def test_a_library_that_is_missing_ends_the_build_but_for_the_drivers(line: str, reported: str) -> None:
    text = (DOCKER / "Dockerfile").read_text()
    (program,) = re.findall(r"awk '(/not found/ .*?)'", text)
    done = subprocess.run(("awk", program), input=line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == reported


def test_triton_of_each_cuda_track_is_pinned_by_hashes() -> None:
    tracks = [track for track in load().values() if track.cuda]
    assert len(tracks) == 2
    for track in tracks:
        pins = (DOCKER / f"requirements/triton-{track.triton}.txt").read_text()
        assert f"triton=={track.triton} \\\n    --hash=sha256:" in pins


def test_no_role_needs_a_module_that_installs_what_nobody_records() -> None:
    tasks = [path.read_text() for path in (ROOT / "ansible").rglob("*.yml")]
    assert len(tasks) > 40
    assert not [text for text in tasks if "deb822_repository:" in text]


def test_no_pipe_of_a_build_ends_before_its_program_has_said_all() -> None:
    """`grep -q` ends at its first hit; under pipefail, what still writes to it fails the build."""
    recipes = [path for path in DOCKER.rglob("*") if "Dockerfile" in path.name or path.suffix == ".sh"]
    assert len(recipes) > 10
    text = {path.name: path.read_text() for path in recipes}
    assert not [name for name in text if re.search(r"\| *grep -\w*q", text[name])]
