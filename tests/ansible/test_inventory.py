"""hosts.txt as Ansible's inventory, and that an empty one is never a success."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS, PATH, run

if find_spec("ansible") is None:
    pytest.skip("Ansible is not installed", allow_module_level=True)


# The import of Ansible takes a second of processor time: one process imports it, and forks for each command.
FORKS = """
import json, os, sys
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.inventory import InventoryCLI
from ansible.cli.playbook import PlaybookCLI
programs = {"ansible": AdHocCLI, "ansible-inventory": InventoryCLI, "ansible-playbook": PlaybookCLI}
statuses = {}
for name, (folder, *argv) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[2]}/{name}.{kind}", os.O_WRONLY | os.O_CREAT, 0o600), number)
        programs[argv[0]].cli_executor(argv)  # exits
    statuses[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(statuses))
"""
MISTAKES: dict[str, tuple[str | None, str]] = {
    "mistake": ("node1 slots=8x\n", "hosts.txt:1:7: slots must be a positive integer, got '8x'"),
    "this-machine": ("localhost slots=2\n", "localhost is this machine, which is used as it is"),
    "missing": (None, "no such hosts file"),
}
WITHOUT_CONFIGURATION = {"cfg-hosts": "node1 slots=2\n", "cfg-missing": None}
STACKS = {"bare": "bare", "nothing": None}
GROUPS = (
    "gpu-a slots=8 addr=10.0.0.7  # the head\n"
    "/* node00 is\n away */ node[01-02] slots = 4 max_slots=8 user=ml port=2200  // workers\n"
)


class Ended(NamedTuple):
    """How a command of Ansible ended."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Both outputs, without line breaks."""
        return " ".join((self.out + self.err).split())


def ended_in(cwd: Path, folder: Path, commands: dict[str, tuple[str, ...]]) -> dict[str, Ended]:
    """Run commands, each in a folder, with the ansible.cfg of `cwd`."""
    env = {"PATH": PATH, "ANSIBLE_NOCOLOR": "1", "HOME": str(Path.home())}
    done = run(sys.executable, "-c", FORKS, json.dumps(commands), str(folder), cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    outputs = {
        name: [(folder / f"{name}.{kind}").read_text() for kind in ("out", "err")] for name in commands
    }
    return {name: Ended(status, *outputs[name]) for name, status in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How each command ended."""
    folder, books = tmp_path_factory.mktemp("inventory"), str(BOOKS)

    def hosts(name: str, text: str | None, *, stack: str | None = None) -> str:
        (folder / name).mkdir()
        path = folder / name / "hosts.txt"
        if text is not None:
            path.write_text(text)
        if stack:
            (folder / name / ".muster").mkdir()
            (folder / name / ".muster" / "stack").write_text(f"{stack}\n")
        return str(path)

    groups, left = hosts("groups", GROUPS), hosts("left", "node1\nnode2\n")
    (folder / "left" / ".muster").mkdir()
    recorded = {"node1": {}, "node9": {"user": "ml", "ssh_port": 2200, "left_out": True}}
    (folder / "left" / ".muster" / "hosts.json").write_text(json.dumps(recorded))
    stacks = {name: hosts(name, "nowhere.invalid slots=2\n", stack=stack) for name, stack in STACKS.items()}
    other = ("--inventory", stacks["bare"], "--extra-vars", "muster_stack=node")
    asked = ("--playbook-dir", ".", "--module-name", "debug", "--args", "var=muster_stack")
    configured: dict[str, tuple[str, ...]] = {
        "groups": (books, "ansible-inventory", "--inventory", groups, "--list"),
        "left": (books, "ansible-inventory", "--inventory", left, "--list"),
        "graph": (books, "ansible-inventory", "--graph"),
        **{
            name: (books, "ansible-playbook", "setup.yml", "--inventory", hosts(name, text))
            for name, (text, _) in MISTAKES.items()
        },
        "limit": (books, "ansible-playbook", "setup.yml", "--limit", "elsewhere"),
        **{
            f"stack-{name}": (books, "ansible", "cluster", "--inventory", path, *asked)
            for name, path in stacks.items()
        },
        "another-stack": (books, "ansible-playbook", "verify.yml", *other),
        "venv": (books, "ansible-playbook", "venv.yml", "--inventory", stacks["bare"]),
    }
    without: dict[str, tuple[str, ...]] = {
        name: (
            *(str(Path(hosts(name, text)).parent), "ansible-playbook", f"{BOOKS}/setup.yml"),
            *("-i", "hosts.txt"),
        )
        for name, text in WITHOUT_CONFIGURATION.items()
    }
    return ended_in(BOOKS, folder, configured) | ended_in(folder, folder, without)


def test_groups_and_variables_come_from_the_hosts_file(ended: dict[str, Ended]) -> None:
    status, out, err = ended["groups"]
    assert status == 0, err
    listed = json.loads(out)
    assert listed["head"]["hosts"] == ["gpu-a"]
    assert listed["workers"]["hosts"] == ["node01", "node02"]
    assert sorted(listed["cluster"]["children"]) == ["head", "workers"]
    own = {
        name: {key: plain(value) for key, value in variables.items() if key in OWN}
        for name, variables in listed["_meta"]["hostvars"].items()
    }
    worker = {"muster_slots": 4, "muster_user": "ml", "muster_port": 2200, "ansible_port": 2200}
    assert own == {
        "gpu-a": {"muster_slots": 8, "muster_addr": "10.0.0.7", "muster_user": "muster"},
        "node01": worker,
        "node02": worker,
    }


def test_a_recorded_host_that_is_not_in_the_hosts_file_left_it(ended: dict[str, Ended]) -> None:
    status, out, err = ended["left"]
    assert status == 0, err
    listed = json.loads(out)
    assert listed["left"]["hosts"] == ["node9"]
    variables = listed["_meta"]["hostvars"]["node9"]
    assert (plain(variables["muster_user"]), variables["muster_port"]) == ("ml", 2200)


def plain(value: object) -> object:
    """Ansible marks text from outside, which it will not take for a template, in its listings."""
    return value["__ansible_unsafe"] if isinstance(value, dict) else value


OWN = {"muster_slots", "muster_user", "muster_port", "muster_addr", "ansible_port"}


def test_the_example_hosts_file_is_the_inventory_without_being_asked_for(ended: dict[str, Ended]) -> None:
    status, out, err = ended["graph"]
    assert status == 0, err
    assert "@head" in out
    assert "node1" in out


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_wrong_with_a_hosts_file_stops_setup(ended: dict[str, Ended], name: str) -> None:
    assert ended[name].status != 0
    assert MISTAKES[name][1] in ended[name].said


def test_every_playbook_begins_with_what_it_requires_of_the_cluster() -> None:
    """So the tests below run one of them."""
    books = {path.stem: yaml.safe_load(path.read_text()) for path in BOOKS.glob("*.yml")}
    del books["cluster"]
    assert {*books} >= {"setup", "verify", "rotate-keys", "teardown"}
    assert {book[0].get("ansible.builtin.import_playbook") for book in books.values()} == {"cluster.yml"}


@pytest.mark.parametrize("name", WITHOUT_CONFIGURATION)
def test_without_ansible_cfg_a_playbook_fails(ended: dict[str, Ended], name: str) -> None:
    assert ended[name].status != 0
    assert "No hosts. Run it in the folder of ansible.cfg" in ended[name].out + ended[name].err


def test_a_limit_that_names_no_host_fails(ended: dict[str, Ended]) -> None:
    assert ended["limit"].status != 0
    assert "no hosts to target" in ended["limit"].err


@pytest.mark.parametrize("name", STACKS)
def test_the_stack_that_setup_chose_is_the_one_of_later_commands(ended: dict[str, Ended], name: str) -> None:
    status, out, err = ended[f"stack-{name}"]
    assert status == 0, err
    assert f"muster_stack: {STACKS[name] or 'node'}" in out


def test_another_stack_than_the_one_that_setup_chose_stops_a_playbook(ended: dict[str, Ended]) -> None:
    assert ended["another-stack"].status != 0
    said = ended["another-stack"].said
    assert "muster_stack is node, but setup gave these hosts the stack bare" in said
    assert "muster teardown -- -e muster_stack=bare" in said
    assert "UNREACHABLE" not in said


def test_an_environment_without_root_is_no_second_stack(ended: dict[str, Ended]) -> None:
    assert ended["venv"].status != 0
    assert "muster_stack is venv, but setup gave these hosts the stack bare" in ended["venv"].said
