"""What adds to a job: one class with every point at which something optional may act.

A feature leaves out the methods that it does not need. The job calls its features in the order of their
tuple. `prepare` changes an attempt, by the values that it returns; the other methods tap its course. A
feature that raises in `greet`, `prepare` or `delivered` refuses the attempt. In any other method it loses
itself only: the verdict gets a note, and the folder of the run the traceback.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..decode import lazy_dataclass
from ..errors import MusterError

if TYPE_CHECKING:  # most commands have no job
    from ..connect.channel import Channel
    from ..connect.cluster import Cluster
    from ..connect.reports import Report
    from ..plan.flags import Options
    from ..plan.launch_plan import Contribution, LaunchPlan, Placement
    from ..plan.spec import LaunchSpec
    from ..timings import Timings
    from .events import Emit, Event
    from .result import Failure, LaunchResult
    from .run_folder import RunFolder
    from .state import LaunchState

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Start:
    """An attempt before its plan is made."""

    spec: LaunchSpec
    placement: Placement
    emit: Emit
    """Passes an event on, to all features and to the folder of the run."""
    timings: Timings
    is_dry_run: bool = False
    """Whether the plan is only shown: then nothing may change on a host."""


@dataclass(frozen=True)
class Attempt:
    """An attempt whose hosts are connected."""

    plan: LaunchPlan
    cluster: Cluster
    folder: RunFolder
    emit: Emit
    """Passes an event on, to all features and to the folder of the run."""
    state: LaunchState
    """Which ranks have started, ended or failed so far."""
    timings: Timings
    began: float
    """When the first attempt of the job began, in seconds since the epoch."""
    away: frozenset[str] = frozenset()
    """The hosts of the job that were lost, and may answer again."""
    next_hosts: frozenset[str] = frozenset()
    """The hosts of the attempt that follows, which are known at the end."""

    @property
    def is_last(self) -> bool:
        """Whether no other attempt follows."""
        return not self.next_hosts

    @property
    def head(self) -> Channel:
        """The first host."""
        return self.cluster.channels[self.plan.hosts[0].host.name]

    @property
    def answering(self) -> dict[str, Channel]:
        """The hosts that still answer."""
        return {
            name: channel
            for name, channel in self.cluster.channels.items()
            if name not in self.cluster.silent and not channel.ended
        }

    def fail(self, failure: Failure) -> None:
        """End the attempt. Of several failures, the first one counts."""
        self.state.fail(failure)


class Feature:
    """Adds something optional to a job."""

    hears: tuple[type[Report], ...] = ()
    """The kinds of reports that it asks the hosts for. They come as `Reported` events."""

    def greet(self, channel: Channel) -> None:
        """A host is connected while others still connect: post requests to it. Called by several threads."""

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """All hosts are connected: look, wait, install; returns what each host's plan gets from this.

        `UnfitError` names hosts that cannot be used.
        """
        return {}

    def delivered(self, plan: LaunchPlan, cluster: Cluster) -> None:
        """The job's folder is on every host: start there what the ranks need."""

    def begins(self, attempt: Attempt) -> None:
        """An attempt is announced, and its ranks start next. A `MusterError` ends it."""

    def on_event(self, event: Event) -> None:
        """Something has happened. The job waits for this call."""

    def turn(self, attempt: Attempt) -> None:
        """The ranks run. The job calls it at least every 2 s, and waits for it."""

    def explain(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """All ranks have ended, or one has failed, and the job is ended next; returns the result to keep.

        The other ranks still exist. The call runs in a thread, while the job listens to its hosts.
        """
        return result

    def cause(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """The ranks have ended; returns the result with the cause of its failure. It decides on a restart."""
        return result

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """The cause of the failure is known, and the hosts are connected; returns the result to keep."""
        return result

    def fetch(self, attempt: Attempt) -> None:
        """The result of the attempt is recorded; files of its hosts can be fetched."""

    def over(self, result: LaunchResult) -> LaunchResult:
        """The job is over, and its result not yet written; returns the result to write."""
        return result

    def closed(self, result: LaunchResult) -> str:
        """The result is written; returns a note for the user, or an empty text."""
        return ""


@lazy_dataclass(frozen=True)
class AllFeatures:
    """Which features there are: for a driver on a host, whose program is itself of a feature."""

    of: Callable[..., Features]
    """Makes the features of a job from its request; further features act before them."""
    options: Sequence[type[Options]]
    """The classes of their options."""


class Features:
    """The features of a job. It calls them by their methods: `features.tell(Feature.turn, attempt)`."""

    def __init__(self, features: Sequence[Feature] = ()) -> None:
        self._features = [*features]
        self._errors: dict[str, str] = {}
        """The traceback of each feature that raised, by its name. It is not called again."""

    @property
    def hears(self) -> frozenset[type[Report]]:
        return frozenset(kind for feature in self._features for kind in feature.hears)

    def tell(self, method: Callable[Concatenate[Any, P], None], *args: P.args, **more: P.kwargs) -> None:
        """Call a method of every feature."""
        for feature in self._features:
            self._call(feature, _of(feature, method, *args), None)

    def require(self, method: Callable[Concatenate[Any, P], None], *args: P.args, **more: P.kwargs) -> None:
        """Call a method of every feature, without which the attempt is refused."""
        for feature in self._features:
            self._require(feature, _of(feature, method, *args))

    def prepare(self, start: Start, cluster: Cluster) -> Iterator[Mapping[str, Contribution]]:
        """See `Feature.prepare`. The next feature is called when the values of this one are applied."""
        for feature in self._features:
            yield self._require(feature, partial(feature.prepare, start, cluster))

    def revise(
        self,
        method: Callable[[Any, Attempt, LaunchResult], LaunchResult],
        attempt: Attempt,
        result: LaunchResult,
    ) -> LaunchResult:
        """Call a method of every feature, each with the result that the one before has returned."""
        for feature in self._features:
            result = self._call(feature, _of(feature, method, attempt, result), result)
        return result

    def over(self, result: LaunchResult, keep: Callable[[str, str], None]) -> LaunchResult:
        """See `Feature.over`. `keep` writes a file into the folder of the run."""
        for feature in self._features:
            result = self._call(feature, partial(feature.over, result), result)
        notes = []
        for name, text in self._errors.items():
            keep(f"feature-{name}.txt", text)
            notes.append(f"Muster's own error in {name}: {text.splitlines()[-1]} (feature-{name}.txt)")
        return dataclasses.replace(result, notes=(*result.notes, *notes))

    def closed(self, result: LaunchResult) -> list[str]:
        """See `Feature.closed`; the notes of all features."""
        notes = (self._call(feature, partial(feature.closed, result), "") for feature in self._features)
        return [note for note in notes if note]

    def _require(self, feature: Feature, call: Callable[[], T]) -> T:
        """The result of a call without which the attempt is refused."""
        try:
            return call()
        except MusterError:
            raise
        except Exception as error:
            name, place = type(feature).__name__, traceback.extract_tb(error.__traceback__)[-1]
            self._errors[name] = traceback.format_exc()
            text = f"Muster's own error in {name}: {type(error).__name__}: {error}"
            raise MusterError(f"{text} ({place.filename}, line {place.lineno})") from error

    def _call(self, feature: Feature, call: Callable[[], T], otherwise: T) -> T:
        name = type(feature).__name__
        if name in self._errors:
            return otherwise
        try:
            return call()
        except MusterError:
            raise
        except Exception:  # noqa: BLE001  # a bug of a feature must not cost the job
            self._errors[name] = traceback.format_exc()
            return otherwise


def _of(feature: Feature, method: Callable[..., T], *args: object) -> Callable[[], T]:
    """The call of a feature's own method of this name."""
    return partial(getattr(feature, method.__name__), *args)
