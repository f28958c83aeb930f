"""What the documents say is there: files, make targets, commands and their flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers import NAMES, PEERS
from muster.deploy.cli.commands import commands as all_commands
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.wire.variables import OF_RANKS, SETTINGS
from tests.cluster.faults import FAULTS
from tests.cluster.start_faults import START_FAULTS
from tests.command_lines import parse

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *(ROOT / folder / "README.md" for folder in ("ansible", "benchmarks")),
        ROOT / ".github" / "RELEASING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
README = DOCUMENTS["README.md"]
KNOWN = all_commands()
MAKEFILE = (ROOT / "Makefile").read_text()


def commands(text: str, program: str) -> Iterator[str]:
    """Every command of a document's code blocks, and of its `code`, that begins with the program's name."""
    fenced = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    # What is for the reader stands behind # or, in a help text, behind a gap.
    blocks = [
        re.split(r"\s+# |\s{3,}", line.strip())[0] for line in fenced.splitlines() if line[:4] == "    "
    ]
    for command in blocks + re.findall(r"`([^`\n]+)`", fenced):
        is_usage = "[options]" in command or "…" in command
        if command.split()[:1] == [program] and len(command.split()) > 1 and not is_usage:
            yield command.strip()


def everywhere(program: str) -> list[str]:
    """The same of every document but the changelog, which tells of commands as they were."""
    found = {
        command
        for name, text in DOCUMENTS.items()
        if name != "CHANGELOG.md"
        for command in commands(text, program)
    }
    return sorted(found - {f"{program} COMMAND", f"{program} COMMAND --help", f"{program} help COMMAND"})


def hosts_files(text: str) -> str:
    """The lines of a document's code blocks that look like those of a hosts file."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(line for line in lines if re.match(r"[\w.,\[\]-]+ slots=\d", line))


def test_links_lead_somewhere() -> None:
    address = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/|$)")
    targets = [
        (document, target)
        for document, text in DOCUMENTS.items()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    ]
    broken = [
        (document, target)
        for document, target in targets
        if not (
            address.match(target) if ":" in target else (ROOT / document).parent.joinpath(target).exists()
        )
    ]
    assert broken == []


def test_sections_that_are_linked_exist() -> None:
    headings = {
        line.strip("# ").lower().replace(" ", "-") for line in README.splitlines() if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= headings


def test_the_changelog_has_one_short_line_for_each_change() -> None:
    lines = DOCUMENTS["CHANGELOG.md"].splitlines()
    # A rebase joins both sides of this file, and old lines come back: take main's, and add your line again.
    assert [line for line in lines if len(line) > 160] == []
    changes = [line for line in lines if line.startswith("- ")]
    assert sorted(changes) == sorted(set(changes))
    assert len([line for line in lines if line.startswith("### ")]) == 6, "a kind of change is there twice"


def test_make_has_the_targets() -> None:
    targets = {*re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)}
    assert [command for command in everywhere("make") if command.split()[1] not in targets] == []


def require_understood(command: str) -> None:
    """Parse a command as the program does: its task and every flag must exist, and its values make sense.

    A text may name a flag without its value.
    """
    program, *words = shlex.split(command)
    named = KNOWN.get(words[0])
    flag = named.flags.get(words[-1]) if named else None
    if flag and flag.kind is not bool and not flag.alone:
        words.append("1")
    try:
        values = parse(words, program).values
    except UsageError as error:  # the text names the command alone
        assert re.match(r"(what|which) [a-z ]+\? ", str(error)), error
        return
    shlex.split(values.get("--args", ""))


def test_the_commands_are_understood() -> None:
    named = [command for program in ("fab", "muster") for command in everywhere(program)]
    wrong = {}
    for command in named:
        if command.startswith(("muster -", "muster help")) or "--help" in command:
            continue
        try:
            require_understood(command)
        except (UsageError, ValueError, AssertionError) as error:
            wrong[command] = str(error)
    assert wrong == {}


def test_the_playbooks_exist() -> None:
    books = {book for text in DOCUMENTS.values() for book in re.findall(r"ansible-playbook (\w+\.yml)", text)}
    assert "setup.yml" in books
    for book in books:
        assert (ROOT / "ansible" / book).is_file(), book


def test_there_are_commands_to_test() -> None:
    assert len(list(commands(README, "muster"))) >= 10
    assert len(everywhere("fab")) >= 4
    assert len(everywhere("muster")) >= 50
    assert len(list(commands(README, "make"))) >= 4


@pytest.mark.parametrize(("document", "hosts"), [("README.md", 18), ("docs/reference/hosts-file.md", 19)])
def test_the_example_hosts_files_are_read(document: str, hosts: int) -> None:
    assert len(hostfile.parse(hosts_files(DOCUMENTS[document]))) == hosts


def test_the_hosts_file_of_the_checkout_is_that_of_the_practice_cluster() -> None:
    assert [host.name for host in hostfile.load(ROOT / "hosts.txt")] == ["node1", "node2", "node3"]


def test_code_comes_within_the_first_screen() -> None:
    first = next(number for number, line in enumerate(README.splitlines()) if line.startswith("    "))
    assert first < 10


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_no_document_installs_from_an_index_that_does_not_have_it_yet() -> None:
    has_index = re.search(r'^Index = "', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    install = re.compile(r"pip install (?:--upgrade )?'?muster-cluster")
    assert has_index or [name for name, text in DOCUMENTS.items() if install.search(text)] == []


def test_every_benchmark_is_described() -> None:
    text = DOCUMENTS["benchmarks/README.md"]
    programs = [path.name for path in (ROOT / "benchmarks").glob("*.py")]
    assert [name for name in programs if f"`{name}`" not in text] == []


def test_the_modules_that_the_architecture_names_exist() -> None:
    text = DOCUMENTS["docs/architecture.md"] + DOCUMENTS["docs/explanation/reasons.md"]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)(?:\.py)?`", text))
    roots = (ROOT / "deploy", ROOT / "train", ROOT)
    in_a_run = {"logs/order"}
    assert named - in_a_run == {
        name
        for name in named
        if any((root / name).is_dir() or (root / f"{name}.py").is_file() for root in roots)
    }


def test_the_steps_that_the_architecture_names_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "deploy").rglob("*.py"))
    named = re.findall(r"`(?:[A-Za-z]+\.)?(_?[a-z]+(?:_[a-z]+)*)`", DOCUMENTS["docs/architecture.md"])
    steps = {name for name in named if name.startswith("_")}
    classes = {*re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", DOCUMENTS["docs/architecture.md"])}
    assert {name for name in steps if f"def {name}(" not in sources} == set()
    assert {name for name in classes if not re.search(rf"class {name}\b", sources)} == set()


def test_every_variable_of_muster_is_described_and_only_those() -> None:
    folders = ("deploy", "train", "docker")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [
        path.read_text(errors="replace")
        for path in (*sources, ROOT / "compose.yaml")
        if "__pycache__" not in path.parts
    ]
    used = {name for text in texts for name in re.findall(r"MUSTER_[A-Z0-9_]*[A-Z0-9]", text)}
    described = re.findall(r"`(MUSTER_[A-Z0-9_]+)`", DOCUMENTS["docs/reference/environment.md"])
    assert set(described) == used


VARIABLE = re.compile(r"\.\.\.|\*|\b(?:node|gpu)\w*\d\b|'8x'|\bml\b|\bslots\b|[\d.:]+")


def test_the_messages_that_are_explained_are_those_of_the_code() -> None:
    # A message is put together from pieces: two or three of its words must be in the code together.
    sources = "\n".join(path.read_text() for path in (ROOT / "deploy").rglob("*.py"))
    code = re.sub(r"""["']\s*\n\s*f?["']""", "", sources)
    table = re.findall(r"^\| (`.*?) \|", DOCUMENTS["docs/how-to/when-it-fails.md"], re.MULTILINE)
    messages = [message for row in table for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) >= 15
    for message in messages:
        pieces = [piece.strip(" :;,()").split() for piece in VARIABLE.split(message)]
        phrases = [
            " ".join(piece[start : start + size])
            for piece in pieces
            for size in (2, 3)
            for start in range(max(1, len(piece) - size + 1))
        ]
        assert any(len(phrase) >= 8 and phrase in code for phrase in phrases), message


def test_every_fault_has_its_row_in_the_document() -> None:
    rows = (ROOT / "docs" / "faults.md").read_text()
    limits = {fault.title: fault.within for fault in FAULTS.values()}
    limits |= {fault.title: fault.within for fault in START_FAULTS.values()}
    for title, within in limits.items():
        assert f"| {title} | {within:g} |" in rows, "python benchmarks/faults.py writes it"
    assert PEERS.keys() <= FAULTS.keys() | START_FAULTS.keys()
    assert {len(figures) for figures in PEERS.values()} == {len(NAMES)}


def test_the_untimed_faults_of_the_document_have_tests() -> None:
    section = (
        (ROOT / "docs" / "faults.md").read_text().partition("## Untimed faults")[2].partition("\n## ")[0]
    )
    tests = [row.split(" | ")[2].rstrip(" |") for row in section.splitlines() if row.startswith("| ")][2:]
    assert len(tests) > 40
    assert [name for row in tests for name in row.split(", ") if not (ROOT / name).is_file()] == []


def test_the_page_on_the_environment_names_every_variable_that_a_user_cannot_set() -> None:
    page = DOCUMENTS["docs/reference/environment.md"]
    assert [name for name in (*OF_RANKS, *(f"{name}*" for name in SETTINGS)) if f"`{name}`" not in page] == []
