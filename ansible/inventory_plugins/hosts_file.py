"""Reads hosts.txt as Ansible's inventory, with Muster's own parser, muster.deploy.core.hosts.hostfile."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from ansible.errors import AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import BaseInventoryPlugin

# The folder that holds ansible/ is the package `muster`, in a checkout and in an installation. With it on the
# path any Ansible works, not only an Ansible that was installed beside Muster.
MUSTER = sys.modules.setdefault("muster", ModuleType("muster"))
MUSTER.__path__ = [str(Path(__file__).resolve().parents[2])]

from muster.deploy.core.errors import MusterError  # noqa: E402  # found by that path
from muster.deploy.core.hosts import hostfile  # noqa: E402  # the same
from muster.deploy.features.setup import record as setup_record  # noqa: E402  # the same

DOCUMENTATION = """
name: hosts_file
short_description: Muster's hosts file as an inventory
description:
  - >-
    Reads an Open MPI hostfile by the rules of C(muster.deploy.core.hosts.hostfile), which names every
    mistake.
  - Groups are C(cluster), and in it C(head), the first host, and C(workers), the others.
  - >-
    The group C(left) has the hosts of C(.muster/hosts.json) that left the hosts file before setup was undone.
  - >-
    Variables of a host are C(muster_slots) and, where the file says so, C(muster_user) (the account that jobs
    run as), C(muster_port) with C(ansible_port), and C(muster_addr) (its address on the data network).
  - >-
    Variables of all hosts are C(muster_hosts_file) and C(muster_folder), the folder C(.muster) beside it.
options: {}
"""


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]  # Ansible has no types
    """Ansible finds an inventory plugin by this name."""

    NAME = "hosts_file"

    def verify_file(self, path: str) -> bool:
        """Accept every path: for a missing file the parser has its own message."""
        return bool(path)

    def parse(self, inventory: InventoryData, loader: DataLoader, path: str, cache: bool = True) -> None:
        """Fill the inventory from the hosts file; an error lists everything that is wrong with the file."""
        super().parse(inventory, loader, path, cache)
        try:
            hosts = hostfile.load(Path(path))
            left = setup_record.left(Path(path).parent / ".muster", {host.name for host in hosts})
        except MusterError as error:
            raise AnsibleParserError(str(error)) from error
        if local := [host.name for host in hosts if host.is_local]:
            raise AnsibleParserError(
                f"{path}: {local[0]} is this machine, which is used as it is; setup is for hosts behind SSH"
            )
        for group in ("cluster", "head", "workers", "left"):
            inventory.add_group(group)
        inventory.add_child("cluster", "head")
        inventory.add_child("cluster", "workers")
        for index, host in enumerate(hosts):
            _add(inventory, host, "workers" if index else "head")
        for host in left:
            _add(inventory, host, "left")
        inventory.set_variable("all", "muster_hosts_file", str(Path(path).resolve()))
        inventory.set_variable("all", "muster_folder", str(Path(path).resolve().parent / ".muster"))


def _add(inventory: InventoryData, host: hostfile.Host, group: str) -> None:
    inventory.add_host(host.name, group=group, port=host.port)
    for key in ("slots", "user", "port", "addr"):
        if (value := getattr(host, key)) is not None:
            inventory.set_variable(host.name, f"muster_{key}", value)
