"""preflight checks the values of every role that setup.yml imports: no role checks its own there."""

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
