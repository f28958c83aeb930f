"""Templates of the roles, rendered by Ansible in a process of its own.

Ansible replaces sys.intern wherever it is imported, and torch._dynamo cannot be imported after that; yet the
tests of training share pytest's process.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import pytest

from tests.ansible.bare_hosts import BOOKS

if find_spec("ansible") is None:
    pytest.skip("Ansible is not installed", allow_module_level=True)

DEBIAN = {"id": "debian", "version": "13"}
SYSTEMS = BOOKS / "vars/systems"
Inventory = dict[str, dict[str, Any]]


def render(role: str, template: str, inventory: Inventory, **variables: object) -> str:
    """A template of a role, as Ansible renders it for the last host of an inventory."""
    return str(_ansible().submit(_render, role, template, inventory, variables).result(timeout=200))


def render_value(role: str, name: str, inventory: Inventory, **variables: object) -> Any:
    """A variable of a role, as Ansible makes it for the last host of an inventory."""
    return _ansible().submit(_render, role, name, inventory, variables).result(timeout=200)


def problems_of(inventory: Inventory, **variables: object) -> list[str]:
    """The obstacles that preflight finds on the last host of an inventory."""
    found: list[str] = render_value("preflight", "preflight_obstacles", inventory, **variables)
    return found


def system_of(release: dict[str, Any]) -> Any:
    """The names and paths of a system."""
    return _ansible().submit(_system, json.dumps(release)).result(timeout=200)


def filtered(role: str, name: str, *values: object) -> Any:
    """What a filter of a role makes of values."""
    return _ansible().submit(_filtered, role, name, values).result(timeout=200)


@cache
def _ansible() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_find_plugins)


def _find_plugins() -> None:
    """Have Ansible find lookups by their full names, as its programs do."""
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()


def _render(role: str, name: str, inventory: Inventory, variables: dict[str, object]) -> Any:
    """A template, which has a dot in its name, or a variable."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import filter_loader
    from ansible.template import Templar, trust_as_template

    loader = DataLoader()
    folder = BOOKS / "roles" / role
    for plugins in (folder, BOOKS):
        filter_loader.add_directory(str(plugins / "filter_plugins"))
    names = list(inventory)
    own: dict[str, Any] = {"muster_user": "muster"}
    key = {
        "host_keys": {"ssh-ed25519": "AAAAC3NzaC1lZDI1NTE5AAAAIHugDaPm3Yt7vICHzFMUnB8nSkFeVR6SJMSlgh4Wsq+m"}
    }
    given: dict[str, Any] = {
        "groups": {"cluster": names, "head": names[:1]},
        "hostvars": {name: own | {"inventory_hostname": name} | host for name, host in inventory.items()},
        "inventory_hostname": names[-1],
        "ansible_play_hosts": names,
        "ansible_play_hosts_all": names,
        "ansible_check_mode": False,
        "playbook_dir": str(BOOKS),
        "role_path": str(folder),
        "muster_stack": "bare",
        "muster_folder": "/nowhere/.muster",
        "muster_key": "/nowhere/.muster/id_ed25519",
        "muster_known": {
            name: {"hostname": name.partition(".")[0], "port": 22, "node_host_key": ""} | key | host
            for name, host in inventory.items()
        },
        "muster_seen": {
            "sshd": "10.0",
            "os": DEBIAN,
            "operator": {"client": "192.0.2.9", "login": "root"},
            "account": {},
            "sshd_without": {"settings": {}, "defaults": {}},
            "container": True,
            "may_set_clock": False,
            "hard_limits": {"memlock": -1, "nofile": 1 << 20},
            "selinux": False,
        },
    }
    system = _system(json.dumps((given | variables)["muster_seen"].get("os", DEBIAN)))
    given |= {"preflight_system": system}
    given["hostvars"] = {
        name: {"preflight_system": system} | host for name, host in given["hostvars"].items()
    }
    files = [BOOKS / "group_vars/all.yml", folder / "defaults/main.yml", folder / "vars/main.yml"]
    for file in (file for file in files if file.exists()):
        given = loader.load_from_file(str(file), trusted_as_template=True) | given
    templar = Templar(loader=loader, variables=given | own | inventory[names[-1]] | variables)
    if "." not in name:
        return json.loads(str(templar.template(trust_as_template(f"{{{{ {name} | to_json }}}}"))))
    return str(templar.template(trust_as_template((folder / "templates" / name).read_text())))


@cache
def _system(release: str) -> Any:
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    loader = DataLoader()
    file = BOOKS / "roles/preflight/vars/main.yml"
    own = loader.load_from_file(str(file), trusted_as_template=True)
    given = {
        "playbook_dir": str(BOOKS),
        "preflight_release": {"like": [], "version": ""} | json.loads(release),
    }
    templar = Templar(loader=loader, variables=own | given)
    return json.loads(str(templar.template(trust_as_template("{{ preflight_system_now | to_json }}"))))


def _filtered(role: str, name: str, values: tuple[object, ...]) -> Any:
    from ansible.plugins.loader import filter_loader

    for plugins in (BOOKS / "roles" / role, BOOKS):
        filter_loader.add_directory(str(plugins / "filter_plugins"))
    return filter_loader.get(name).j2_function(*values)
