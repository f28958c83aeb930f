"""hosts.txt as Ansible's inventory, and that an empty one is never a success."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS, PATH, ROOT, run

if find_spec("ansible") is None:
    pytest.skip("Ansible is not installed", allow_module_level=True)


def ansible(*argv: str, folder: Path = BOOKS) -> tuple[int, str, str]:
    done = run(*argv, cwd=folder, env={"PATH": PATH, "ANSIBLE_NOCOLOR": "1", "HOME": str(Path.home())})
    return done.returncode, done.stdout, done.stderr


def test_groups_and_variables_come_from_the_hosts_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text(
        "gpu-a slots=8 addr=10.0.0.7  # the head\n"
        "/* node00 is\n away */ node[01-02] slots = 4 max_slots=8 user=ml port=2200  // workers\n"
    )
    status, out, err = ansible("ansible-inventory", "--inventory", str(path), "--list")
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


def test_a_recorded_host_that_is_not_in_the_hosts_file_left_it(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("node1\nnode2\n")
    (tmp_path / ".muster").mkdir()
    recorded = {"node1": {}, "node9": {"user": "ml", "ssh_port": 2200, "left_out": True}}
    (tmp_path / ".muster" / "hosts.json").write_text(json.dumps(recorded))
    status, out, err = ansible("ansible-inventory", "--inventory", str(tmp_path / "hosts.txt"), "--list")
    assert status == 0, err
    listed = json.loads(out)
    assert listed["left"]["hosts"] == ["node9"]
    variables = listed["_meta"]["hostvars"]["node9"]
    assert (plain(variables["muster_user"]), variables["muster_port"]) == ("ml", 2200)


def plain(value: object) -> object:
    """Ansible marks text from outside, which it will not take for a template, in its listings."""
    return value["__ansible_unsafe"] if isinstance(value, dict) else value


OWN = {"muster_slots", "muster_user", "muster_port", "muster_addr", "ansible_port"}


def test_the_example_hosts_file_is_the_inventory_without_being_asked_for() -> None:
    status, out, err = ansible("ansible-inventory", "--graph")
    assert status == 0, err
    assert "@head" in out
    assert "node1" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 slots=8x\n", "hosts.txt:1:7: slots must be a positive integer, got '8x'"),
        ("# nothing\n", "no hosts; write one line a host"),
        ("localhost slots=2\n", "localhost is this machine, which is used as it is"),
        (None, "no such hosts file"),
    ],
    ids=["mistake", "empty", "this machine", "missing"],
)
def test_what_is_wrong_with_a_hosts_file_stops_setup(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "hosts.txt"
    if text is not None:
        path.write_text(text)
    status, out, err = ansible("ansible-playbook", "setup.yml", "--inventory", str(path))
    assert status != 0
    assert message in " ".join((out + err).split())


def test_every_playbook_begins_with_what_it_requires_of_the_cluster() -> None:
    """So the tests below run one of them."""
    books = {path.stem: yaml.safe_load(path.read_text()) for path in BOOKS.glob("*.yml")}
    del books["cluster"]
    assert {*books} >= {"setup", "verify", "rotate-keys", "teardown"}
    assert {book[0].get("ansible.builtin.import_playbook") for book in books.values()} == {"cluster.yml"}


def test_without_the_hosts_file_a_playbook_fails() -> None:
    status, out, err = ansible("ansible-playbook", "ansible/teardown.yml", folder=ROOT)
    assert status != 0
    assert "No hosts. Run it in the folder of ansible.cfg" in out + err


@pytest.mark.parametrize("text", ["node1 slots=2\n", "# nothing\n", None], ids=["hosts", "empty", "missing"])
def test_in_a_folder_without_ansible_cfg_a_hosts_file_is_no_success_either(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "hosts.txt").write_text(text)
    status, out, err = ansible("ansible-playbook", f"{BOOKS}/setup.yml", "-i", "hosts.txt", folder=tmp_path)
    assert status != 0
    assert "No hosts. Run it in the folder of ansible.cfg" in out + err


def test_a_limit_that_names_no_host_fails() -> None:
    status, _, err = ansible("ansible-playbook", "setup.yml", "--limit", "elsewhere")
    assert status != 0
    assert "no hosts to target" in err


@pytest.mark.parametrize("recorded", ["bare", None], ids=["recorded", "nothing recorded"])
def test_the_stack_that_setup_chose_is_the_one_of_later_commands(
    tmp_path: Path, recorded: str | None
) -> None:
    path = hosts_with_a_stack(tmp_path, recorded)
    asked = ("ansible", "cluster", "--playbook-dir", ".", "--inventory", str(path))
    status, out, err = ansible(*asked, "--module-name", "debug", "--args", "var=muster_stack")
    assert status == 0, err
    assert f"muster_stack: {recorded or 'node'}" in out


def test_another_stack_than_the_one_that_setup_chose_stops_a_playbook(tmp_path: Path) -> None:
    path = hosts_with_a_stack(tmp_path, "bare")
    status, out, err = ansible(
        "ansible-playbook", "verify.yml", "--inventory", str(path), "--extra-vars", "muster_stack=node"
    )
    assert status != 0
    said = " ".join((out + err).split())
    assert "muster_stack is node, but setup gave these hosts the stack bare" in said
    assert "muster teardown -- -e muster_stack=bare" in said
    assert "UNREACHABLE" not in said


def test_an_environment_without_root_is_no_second_stack(tmp_path: Path) -> None:
    path = hosts_with_a_stack(tmp_path, "bare")
    status, out, err = ansible("ansible-playbook", "venv.yml", "--inventory", str(path))
    assert status != 0
    assert "muster_stack is venv, but setup gave these hosts the stack bare" in " ".join((out + err).split())


def hosts_with_a_stack(folder: Path, recorded: str | None) -> Path:
    """A hosts file, beside which setup recorded a stack."""
    path = folder / "hosts.txt"
    path.write_text("nowhere.invalid slots=2\n")
    if recorded:
        (folder / ".muster").mkdir()
        (folder / ".muster" / "stack").write_text(f"{recorded}\n")
    return path
