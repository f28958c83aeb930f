"""A feature for tests of drivers: a secret option, and a file that gets the end of the job."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from muster.deploy.core.job.feature import AllFeatures, Feature, Features
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.plan.flags import Options, flag
from muster.deploy.core.plan.spec import LaunchSpec


@dataclass(frozen=True)
class TellOptions(Options):
    tell: str = flag("", "write the end of the job into this file", "FILE", secret=True)


class Tells(Feature):
    def __init__(self, spec: LaunchSpec) -> None:
        self._target = spec.of(TellOptions).tell

    def closed(self, result: LaunchResult) -> str:
        if self._target:
            Path(self._target).write_text(json.dumps(result.as_json()))
        return ""


TELLS = AllFeatures(lambda spec, *others: Features((*others, Tells(spec))), (TellOptions,))
"""All features of a driver: this one."""
