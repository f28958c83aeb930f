"""The bill of materials of an image (docker/sbom.py), made of a few files and programs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

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


def test_every_package_has_its_version_and_a_name_of_its_own(
    sbom: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
