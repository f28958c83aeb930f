"""The values that users give: preflight checks those of every role that setup.yml imports."""

from __future__ import annotations

import re
from collections import Counter

import yaml

from tests.ansible.bare_hosts import BOOKS


def test_preflight_checks_the_values_of_every_role_of_setup() -> None:
    imported = re.findall(
        r"import_role: \{name: (\w+), rolespec_validate: false\}", (BOOKS / "setup.yml").read_text()
    )
    (listed,) = re.findall(
        r"preflight_specs: \"\{\{ \[(.*?)\]",
        (BOOKS / "roles/preflight/tasks/main.yml").read_text(),
        re.DOTALL,
    )
    assert re.findall(r"'(\w+)'", listed) == imported
    names = Counter(
        name
        for role in imported
        for name in yaml.safe_load((BOOKS / f"roles/{role}/meta/argument_specs.yml").read_text())[
            "argument_specs"
        ]["main"]["options"]
    )
    assert names.most_common(1)[0][1] == 1, (
        "of two roles with one name for a value, only the last would be checked"
    )


def test_the_port_of_a_node_containers_sshd_is_the_images_and_no_choice() -> None:
    shared = yaml.safe_load((BOOKS / "group_vars/all.yml").read_text())
    docker = BOOKS.parent / "docker"
    found = [
        re.findall(pattern, (docker / name).read_text())
        for name, pattern in (
            ("sshd_config", r"(?m)^Port (\d+)$"),
            ("ssh_config", r"(?m)^ +Port (\d+)$"),
            ("healthy.sh", r"ssh-keyscan .*-p (\d+)"),
        )
    ]
    assert found == [[str(shared["muster_node_port"])]] * 3
    specs = yaml.safe_load((BOOKS / "roles/node/meta/argument_specs.yml").read_text())
    assert not [name for name in specs["argument_specs"]["main"]["options"] if name.endswith("port")]


def test_every_role_has_a_page_of_one_screen_which_the_overview_names() -> None:
    overview = (BOOKS / "README.md").read_text()
    roles = sorted(path.name for path in (BOOKS / "roles").iterdir())
    assert "preflight" in roles
    for role in roles:
        page = (BOOKS / f"roles/{role}/README.md").read_text()
        assert page.startswith(f"# {role}\n"), role
        assert len(page.splitlines()) <= 25, role
        assert f"(roles/{role}/README.md)" in overview, role


def test_no_package_comes_that_no_record_has() -> None:
    """Ansible's modules for apt install python3-apt, and that for repositories python3-debian."""
    files = [*BOOKS.rglob("tasks/*.yml"), *BOOKS.rglob("handlers/*.yml")]
    modules = re.compile(r"ansible\.builtin\.(apt\w*|deb822_repository|package)\b")
    assert len(files) > 50
    assert [str(file) for file in files if modules.search(file.read_text())] == []
