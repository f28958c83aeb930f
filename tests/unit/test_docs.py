"""What the documents say is there: files, make targets, commands and their flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from invoke.parser import Parser
from invoke.program import Program

from benchmarks.peers import NAMES, PEERS
from muster.deploy.cli import namespace
from muster.deploy.cli import options as request
from muster.deploy.cli.positional import read_words
from muster.deploy.hosts import hostfile
from tests.cluster.faults import FAULTS
from tests.cluster.start_faults import START_FAULTS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(word: str) -> Iterator[str]:
    """Every command of the README's indented blocks, and of its `code`, that begins with the word."""
    blocks = [
        line.strip().partition("   #")[0].strip() for line in README.splitlines() if line.startswith("    ")
    ]
    for text in blocks + re.findall(r"`([^`\n]+)`", README):
        if text.split()[:1] == [word]:
            yield text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_sections_that_are_linked_exist() -> None:
    headings = {
        line.strip("# ").lower().replace(" ", "-") for line in README.splitlines() if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= headings


@pytest.mark.parametrize("command", sorted(set(commands("make"))))
def test_make_has_the_target(command: str) -> None:
    assert re.search(rf"^{command.split()[1]}:", MAKEFILE, re.MULTILINE), command


def spelled(tokens: list[str]) -> list[str]:
    """The tokens as the fabfile hands them to Invoke's parser."""
    program = SimpleNamespace(core=SimpleNamespace(unparsed=tokens, remainder=""), argv=tokens)
    if "--" in tokens:
        program.core.unparsed, program.core.remainder = tokens[: tokens.index("--")], "more"
    read_words(cast("Program", program), namespace)
    spelled_out: list[str] = program.core.unparsed
    return spelled_out


@pytest.mark.parametrize("command", sorted(set(commands("fab"))))
def test_fab_understands_the_command(command: str) -> None:
    parser = Parser(contexts=namespace.to_contexts())
    (task,) = parser.parse_argv(spelled(shlex.split(command)[1:]))
    values = {name: argument.value for name, argument in task.args.items()}
    request.one_of("--launcher", values.get("launcher", "mpirun"), ("mpirun", "torchrun"))
    request.one_of("--backend", values.get("backend", "auto"), request.BACKENDS)
    shlex.split(values.get("args", ""))


def test_the_playbooks_exist() -> None:
    books = re.findall(r"cd ansible && ansible-playbook (\S+)", README)
    assert books
    for book in books:
        assert (ROOT / "ansible" / book).is_file(), book


def test_there_are_commands_to_test() -> None:
    assert len(list(commands("fab"))) >= 5
    assert len(list(commands("make"))) >= 4


def test_the_example_hosts_files_are_read() -> None:
    block = README.partition("## The hosts file")[2].partition("## ")[0]
    text = "\n".join(line.strip() for line in block.splitlines() if line.startswith("    "))
    assert len(hostfile.parse(text)) == 1 + 16 + 2
    assert [host.name for host in hostfile.load(ROOT / "hosts.txt")] == ["node1", "node2", "node3"]


def test_code_comes_within_the_first_screen() -> None:
    first = next(number for number, line in enumerate(README.splitlines()) if line.startswith("    "))
    assert first < 10


def test_every_fault_has_its_row_in_the_document() -> None:
    rows = (ROOT / "docs" / "faults.md").read_text()
    limits = {fault.title: fault.within for fault in FAULTS.values()}
    limits |= {fault.title: fault.within for fault in START_FAULTS.values()}
    for title, within in limits.items():
        assert f"| {title} | {within:g} |" in rows, "python benchmarks/faults.py writes it"
    assert PEERS.keys() <= FAULTS.keys() | START_FAULTS.keys()
    assert {len(figures) for figures in PEERS.values()} == {len(NAMES)}
