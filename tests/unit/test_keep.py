"""`--keep`: folders of a project that outlive its jobs on every host."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from muster.deploy.cli.command import Exit, exit_on_error
from muster.deploy.cli.shared import cache_folder
from muster.deploy.core.agent.rsh import login_shell
from muster.deploy.core.agent.supervisor import link_kept
from muster.deploy.core.connect.transports.ssh_config import _route
from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan.source_tree import Tree, TreeFile, project_key, with_kept
from muster.deploy.core.wire.users import own_name
from muster.deploy.core.wire.written import Search
from muster.deploy.features.check.on_host import health
from tests.unit.plans import make_plan


def tree(*paths: str, within: str = ".") -> Tree:
    return Tree(Path("/work/digits"), within, tuple(TreeFile(path, False, "ab" * 32) for path in paths))


def test_a_kept_folder_is_named_as_the_program_names_it() -> None:
    assert with_kept(tree("train.py"), ("checkpoints", "./a/b/")) == (
        tree("train.py"),
        ("checkpoints", "a/b"),
    )
    inner = tree("sub/train.py", within="sub")
    assert with_kept(inner, ("out", "out")) == (inner, ("sub/out",))


def test_placeholders_of_git_stay_here() -> None:
    given = tree("train.py", "ckpt/.gitkeep", "ckpt/a/.gitignore")
    assert with_kept(given, ("ckpt",)) == (tree("train.py"), ("ckpt",))


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("/data", "write a folder below the one in which the launch starts"),
        ("..", "write a folder below the one in which the launch starts"),
        ("a/../../b", "write a folder below the one in which the launch starts"),
        (".", "write a folder below the one in which the launch starts"),
        ("a\nb", "write a folder below the one in which the launch starts"),
        ("ckpt", "the launch sends 2 files there (ckpt/a.pt), and each host keeps its own; list ckpt in"),
        ("train.py", "the launch sends 1 file there (train.py)"),
        ("link/out", "the launch sends 1 file there (link)"),
    ],
)
def test_a_folder_that_cannot_be_kept_is_refused(keep: str, said: str) -> None:
    with pytest.raises(UsageError, match="--keep") as caught:
        with_kept(tree("train.py", "ckpt/a.pt", "ckpt/b/c.pt", "link"), (keep,))
    assert said in str(caught.value)


def test_a_folder_inside_of_a_kept_one_is_kept_already() -> None:
    with pytest.raises(UsageError, match="--keep out/a: out is kept already"):
        with_kept(tree("train.py"), ("out/a", "out"))


def test_a_project_is_its_folder() -> None:
    keys = [project_key(Path(path)) for path in ("/work/digits", "/home/digits", "/home/\u00fc b", "/")]
    assert [key[:-9] for key in keys] == ["digits", "digits", "b", "project"]
    assert len({*keys}) == 4
    assert project_key(Path("/work/digits")) == keys[0]


def test_a_plan_shows_the_kept_folders() -> None:
    plan = make_plan("node1 slots=2", keep=("ckpt",), project="digits-1a2b3c4d")
    (host,) = plan.hosts
    folder = "/home/ml/.muster/kept/digits-1a2b3c4d/ckpt"
    assert host.kept == ((f"{host.folder}/code/ckpt", folder),)
    assert f"  keep ckpt in {folder}\n" in str(plan)


def test_a_program_finds_the_files_of_the_last_launch(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "digits" / "ckpt"
    for number in range(2):
        code = tmp_path / "jobs" / str(number) / "code"
        code.mkdir(parents=True)
        for _ in range(2):  # a restart of the job prepares its folder again
            link_kept([(str(code / "a" / "ckpt"), str(kept))])
        assert [path.name for path in (code / "a" / "ckpt").iterdir()] == ["last.pt"] * number
        (code / "a" / "ckpt" / "last.pt").touch()
        (code.parent / "code.json").write_text("[]")  # `prepare` writes it after these links
        assert [*Search(str(code.parent)).beside_code()] == []


def test_a_link_that_the_program_has_replaced_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    with pytest.raises(OSError, match="ckpt is no link to"):
        link_kept([(str(tmp_path / "ckpt"), str(tmp_path / "kept"))])


# -- users that the user database does not know, as after `docker run --user 12345` --


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unknown")
def test_a_user_without_an_entry_is_called_by_its_number() -> None:
    assert own_name() == str(os.getuid())


@pytest.mark.usefixtures("unknown")
def test_a_user_without_an_entry_is_examined_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert health()["user"] == str(os.getuid())
    assert login_shell() == ""


@pytest.mark.usefixtures("unknown")
def test_a_user_without_a_home_is_told_to_set_one() -> None:
    with pytest.raises(Exit, match=f"here: user {os.getuid()} has no home folder; set HOME"):  # noqa: SIM117
        with exit_on_error():
            cache_folder()


def test_a_home_of_nobody_in_an_ssh_configuration_is_no_file() -> None:
    assert _route("node1", "identityfile ~nobody-at-all/key").identity_files == ()


def test_the_environment_names_a_user_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ml")
    assert own_name() == "ml"
