"""Lets the ranks run in containers of an image (`--image`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import on_every
from ...core.connect.pipe import LostError
from ...core.errors import MusterError, UnfitError
from ...core.job.events import Emit, Stage, Waiting
from ...core.job.feature import Feature, Start
from ...core.plan.launch_plan import Contribution, LaunchPlan
from ...core.plan.spec import LaunchSpec
from ...core.waits import with_hosts
from .messages import CONTAINER, CONTAINER_START, EngineName, HostImage, push_commands, require_same
from .options import ContainerOptions
from .plan import ContainerPlan, contributions

# A host that lacks the image fetches it: as long as it reports that it is busy, it has time.
LOOK_SECONDS, PULL_SECONDS = 300.0, 6 * 3600.0
START_SECONDS = 180.0
# Messages of engines if a registry asks for a login; Docker's registry answers so for unknown names too.
_REFUSED = re.compile(r"(?i)no basic auth credentials|unauthorized|denied|authentication required")
ON_HOST = Path(__file__).parent / "on_host"
_PROCESSES = Path(__file__).parents[2] / "core" / "agent" / "processes.py"
_PROGRAMS = (ON_HOST / "keeper.py", ON_HOST / "enter.py", _PROCESSES)


class Containers(Feature):
    """The image that a launch names, on each host."""

    def __init__(self, spec: LaunchSpec) -> None:
        options = spec.of(ContainerOptions)
        self._image, self._engine = options.image, options.engine
        self._survey = (ON_HOST / "survey.py").read_bytes()
        self._answers: dict[str, Future[HostImage]] = {}
        self._plans: Mapping[str, ContainerPlan] = {}

    def greet(self, channel: Channel) -> None:
        """Ask a host for the image while other hosts are still connecting."""
        self._answers[channel.host] = self._post(channel, pull=False)

    def prepare(self, start: Start, cluster: Cluster) -> Mapping[str, Contribution]:
        """Let hosts without the image fetch it, unless nothing may change there."""
        start.emit(Stage(with_hosts(f"looking for the image {self._image}")))
        with start.timings.part("image"):
            images = self._require(cluster, start.emit, pull=not start.is_dry_run)
        added, self._plans = contributions(start.spec, cluster.facts, images, programs())
        return added

    def delivered(self, plan: LaunchPlan, cluster: Cluster) -> None:
        """Start the container of each host with ranks."""
        channels = {host.host.name: cluster.channels[host.host.name] for host in plan.hosts}

        def start(name: str) -> None:
            container = self._plans[name]
            started = channels[name].post(
                CONTAINER_START,
                argv=container.argv,
                remove=container.remove,
                launcher_inside=container.launcher_inside,
                environment=dict(container.environment),
            )
            channels[name].wait(started, START_SECONDS)

        on_every(channels, start, interrupted=cluster.close).require_all()

    def _require(self, cluster: Cluster, emit: Emit, *, pull: bool) -> Mapping[str, HostImage]:
        """The image of every host; `UnfitError` where it is missing or another. `pull`: fetch it."""
        channels = cluster.channels
        for host in channels.keys() - self._answers.keys():
            self.greet(channels[host])

        def look(host: str) -> HostImage:
            return channels[host].wait(self._answers.pop(host), LOOK_SECONDS)

        images = on_every(channels, look, interrupted=cluster.close).require_all()
        if lacking := [host for host, image in images.items() if not image.id]:
            if not pull or images[lacking[0]].engine == "apptainer":
                raise UnfitError((host, self._lacks(images[host])) for host in lacking)
            emit(Waiting(f"{', '.join(lacking)}: fetching {self._image}"))
            fetched = on_every(
                lacking,
                lambda host: self._fetch(channels[host], images[host].engine),
                interrupted=cluster.close,
            )
            images |= fetched.require_all()
        require_same(self._image, images)
        return images

    def _fetch(self, channel: Channel, engine: EngineName) -> HostImage:
        try:
            return channel.wait(self._post(channel, pull=True), PULL_SECONDS)
        except LostError:
            raise
        except MusterError as error:
            login = (
                f"log in to its registry there ({engine} login), or " if _REFUSED.search(error.reason) else ""
            )
            bring = push_commands(self._image, engine)
            raise MusterError(
                f"{error.reason}; {login}bring it from here: {bring}", host=channel.host
            ) from None

    def _post(self, channel: Channel, *, pull: bool) -> Future[HostImage]:
        return channel.post(CONTAINER, self._survey, image=self._image, engine=self._engine, pull=pull)

    def _lacks(self, image: HostImage) -> str:
        if image.engine == "apptainer":
            return f"there is no {self._image}; bring it: {push_commands(self._image, image.engine)}"
        return (
            f"{image.engine} has no image {self._image}; a launch lets the host fetch it, a dry run "
            f"does not; or bring it from here: {push_commands(self._image, image.engine)}"
        )


def programs() -> dict[str, str]:
    """The programs of the agent for a job's folder, by file name."""
    return {path.name: path.read_text() for path in _PROGRAMS}
