"""No path that a host names becomes a file of a git repository here, or a file outside of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.received_paths import inner_path, inner_paths, is_dot_git
from muster.deploy.features.adhoc import put_get as transfer

SPELLINGS = [
    *(".git", ".GIT", ".gIt", ".git ", ".git.", ".git . .", "git~1", "GIT~1", "git~2", "git~1."),
    *(".git:x", ".git::$INDEX_ALLOCATION", "GIT~1:x", ".g\u200cit", "\ufeff.git", ".git\u200d", ".gi\u2060t"),
    *("\uff0egit", ".\uff27it", ".g\u202eit", ".g\u206fit.", ".g\u00adit"),
]
OTHERS = [".gitignore", ".github", ".gitattributes", "git", "agit~1", "git~", "x.git", ".git2", "gitlab~1"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_that_a_file_system_takes_for_dot_git_is_refused(name: str) -> None:
    for path in (name, f"a/{name}", f"{name}/config", f"a/{name}/b", f"a\\{name}\\b"):
        with pytest.raises(MusterError, match=r"^node1: .* belongs to a git repository; "):
            inner_path(path, "node1")


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_only_look_like_it_come(name: str) -> None:
    assert not is_dot_git(name)
    assert str(inner_path(f"a/{name}")) == f"a/{name}"


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_folder_is_refused(path: str) -> None:
    with pytest.raises(MusterError, match="not a path inside"):
        inner_path(path)


@pytest.mark.parametrize("below", ["", "deep/", "deep/RES/"])
def test_a_repository_without_dot_git_is_refused(below: str) -> None:
    inner_paths(["HEAD", "a/refs/x", "b/objects/y", "refs"])  # not of one folder
    with pytest.raises(MusterError, match="is a git repository"):
        inner_paths([f"{below}Head", f"{below}objects/pack/x", f"{below}refs"])


# ---- every command that brings files -----------------------------------------------------------------------


def test_get_brings_no_repository(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "sub" / ".git").mkdir(parents=True)
    (there / "sub" / ".git" / "config").write_text("[core]\n\tfsmonitor = false\n")
    with (
        Cluster(hostfile.parse("localhost"), lambda host: LocalPipe(None), facts=False) as cluster,
        pytest.raises(MusterError, match=r"localhost: 'sub/.git' belongs to a git repository"),
    ):
        transfer.get(cluster, str(there), here).require_all()
    assert not list(here.iterdir())
