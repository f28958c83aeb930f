"""The file of a run's samples: whole, cut, damaged, begun in the middle, full."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.core.hosts.host_sample import HostSample, RankSample, of_line
from muster.deploy.features.samples import driver
from muster.deploy.features.samples.driver import SampleFile
from tests.samples import read_samples


def sample(number: int, host: str = "node1") -> HostSample:
    return HostSample(float(number), host, load=number / 7, ranks=(RankSample(number, cpu=number * 1.37),))


def write(path: Path, numbers: range, hosts: int = 1) -> list[HostSample]:
    file = SampleFile(str(path), hosts)
    written = [sample(number) for number in numbers]
    for each in written:
        file.add(each)
    file.close()
    return written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def test_what_is_written_is_read_again_also_by_other_programs(path: Path) -> None:
    written = write(path, range(500))
    assert [*read_samples(str(path))] == written
    with path.open() as lines:
        assert [of_line(line) for line in lines] == written


def test_a_line_can_be_read_as_soon_as_it_is_written(path: Path) -> None:
    file = SampleFile(str(path), 1)
    for number in range(3):
        file.add(sample(number))
        assert len([*read_samples(str(path))]) == number + 1
    file.close()


def test_a_file_may_be_closed_again(path: Path) -> None:
    """A Ctrl-C while a run ends makes its end begin again."""
    file = SampleFile(str(path), 1)
    file.add(sample(1))
    file.close()
    whole = path.read_bytes()
    file.close()
    assert path.read_bytes() == whole
    assert whole.count(b"\n") == 1


def test_a_file_that_is_cut_is_read_up_to_the_cut(path: Path) -> None:
    written = write(path, range(60))
    content = path.read_bytes()
    seen = []
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        read = [*read_samples(str(path))]
        assert read == written[: len(read)]
        seen.append(len(read))
    assert seen == sorted(seen) and seen[-1] > 50


def test_damage_costs_the_samples_around_it_alone(path: Path) -> None:
    written = write(path, range(500))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    read = [*read_samples(str(path))]
    assert {*read} <= {*written} and len(read) > 490
    assert (read[0], read[-1]) == (written[0], written[-1])


def test_an_attempt_after_the_end_of_a_driver_goes_on_in_the_same_file(path: Path) -> None:
    written = [*write(path, range(5)), *write(path, range(5, 9))]
    assert [*read_samples(str(path))] == written


def test_a_full_share_makes_samples_rarer_and_never_takes_the_room_of_another_host(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MOST_FILE", 20_000)
    file = SampleFile(str(path), hosts=2)
    for number in range(5000):
        file.add(sample(number, "loud"))
    for number in range(20):
        file.add(sample(number, "quiet"))
    file.close()
    read = [*read_samples(str(path))]
    assert path.stat().st_size < 20_000
    assert [entry.at for entry in read if entry.host == "quiet"] == [float(number) for number in range(20)]
    loud = [entry.at for entry in read if entry.host == "loud"]
    assert loud[-1] > 2500 and 50 < len(loud) < 1000


def test_a_disk_that_is_full_ends_the_file_and_raises_nothing() -> None:
    file = SampleFile("/dev/full", 1)
    file.add(sample(1))
    file.add(sample(2))
    file.close()
    assert file.problem
