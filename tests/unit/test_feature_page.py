"""The example of docs/how-to/feature.md, as it stands there."""

from __future__ import annotations

import json
import re
import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from muster.deploy.core.hosts.host_sample import GpuSample, HostSample
from muster.deploy.core.job.events import Output
from muster.deploy.core.job.feature import Feature, Features
from muster.deploy.core.job.run_folder import RunFolder
from tests.unit.plans import make_plan
from tests.unit.test_feature import DONE

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "feature.md").read_text()


def test_the_example_writes_the_power_of_each_step(tmp_path: Path) -> None:
    code = textwrap.dedent(
        "".join(re.findall(r"^(?:    .*)?\n", PAGE.partition("this page.\n")[2].partition("\nOnly")[0], re.M))
    )
    assert len(code.splitlines()) <= 60
    (tmp_path / "power.py").write_text(code)
    names: dict[str, Any] = runpy.run_path(str(tmp_path / "power.py"))
    folder = RunFolder(tmp_path, "j")
    folder.begin(make_plan("node[1-2]"))
    attempt: Any = SimpleNamespace(folder=folder)
    features = Features((names["PowerPerStep"](),))
    for event in (
        HostSample(1.0, "node1", gpus=(GpuSample(0, power=300.0), GpuSample(1, power=100.5))),
        HostSample(1.0, "node2", gpus=(GpuSample(0),)),
        Output(0, "node1", "out", "step 7 loss 0.5\n"),
        Output(1, "node2", "out", "step 8 loss 0.5\n"),
        Output(0, "node1", "out", "saved\n"),
    ):
        features.tell(Feature.on_event, event)
    assert features.revise(Feature.ended, attempt, DONE) is DONE
    lines = (folder.path / "power.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"step": 7, "watts": 400.5}]


def test_the_page_lists_every_method() -> None:
    listed = re.findall(r"^\| `(\w+)\(", PAGE, re.M)
    assert listed == [name for name, value in vars(Feature).items() if callable(value)]
