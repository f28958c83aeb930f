"""`muster hosts add` with real programs: Ansible reads the inventory, and a launch counts the slots."""

from __future__ import annotations

import os

from tests.launching import Project


def test_an_inventory_of_two_forms_becomes_a_hosts_file(project: Project) -> None:
    site = project.path / "site"
    site.mkdir()
    (site / "a.ini").write_text("[gpus]\ngpu[01:03] ansible_user=ml\n")
    (site / "b.yml").write_text("web:\n  hosts:\n    w1: {ansible_host: 10.0.0.5, ansible_port: 2222}\n")
    words = ("--from-inventory", "site", "--hosts", "new.txt", "--slots", "4", "--offline")
    done = project.fab("hosts.add", *words)
    assert done.returncode == 0, done.stderr
    lines = (project.path / "new.txt").read_text().splitlines()[1:]
    assert [line.partition("#")[0].split() for line in lines] == [
        ["gpu[01-03]", "slots=4", "user=ml"],
        ["10.0.0.5", "slots=4", "port=2222"],
    ]


def test_a_launch_counts_the_cores_of_a_host(project: Project) -> None:
    (project.path / "hosts.txt").write_text("localhost slots=999\n")
    done = project.fab("launch", "--slots", "cores", "--dry-run", "--script", "program.py")
    cores = len(os.sched_getaffinity(0))
    assert done.stdout.splitlines()[0].partition(": ")[2].startswith(f"{cores} rank")
