"""The image of a launch on its hosts: asked for early, fetched where it is missing, the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.pipe import LostError
from ..connect.requests.containers import CONTAINER
from ..errors import MusterError, UnfitError
from ..hosts.containers import ContainerThere, EngineName, require_same, what_brings
from ..plan.spec import LaunchSpec

# A host that lacks the image fetches it: as long as it reports that it is busy, it has time.
LOOK_SECONDS, PULL_SECONDS = 300.0, 6 * 3600.0
# What engines say where a registry wants a login; Docker's own says it of unknown names too.
_REFUSED = re.compile(r"(?i)no basic auth credentials|unauthorized|denied|authentication required")
_SURVEY = Path(__file__).parents[1] / "agent" / "container" / "survey.py"


class Images:
    """The image that a launch names, on each host. `pull`: hosts that lack it fetch it; `say` tells that."""

    def __init__(self, spec: LaunchSpec, say: Callable[[str], None], *, pull: bool) -> None:
        self._image, self._engine, self._say, self._pull = spec.image, spec.engine, say, pull
        self._survey = _SURVEY.read_bytes()
        self._asked: dict[str, Future[ContainerThere]] = {}

    def ask(self, channel: Channel) -> None:
        """Ask a host for the image while other hosts are still connecting."""
        self._asked[channel.host] = self._post(channel, pull=False)

    def furnish(self, cluster: Cluster) -> Mapping[str, ContainerThere]:
        """The image of every host; `UnfitError` where it is not to be had, or is another."""
        channels = cluster.channels
        for host in channels.keys() - self._asked.keys():
            self.ask(channels[host])

        def look(host: str) -> ContainerThere:
            return channels[host].wait(self._asked.pop(host), LOOK_SECONDS)

        there = on_every(channels, look, interrupted=cluster.close).require_all()
        if lacking := [host for host, known in there.items() if not known.id]:
            if not self._pull or there[lacking[0]].engine == "apptainer":
                raise UnfitError((host, self._lacks(there[host])) for host in lacking)
            self._say(f"{', '.join(lacking)}: fetching {self._image}")
            fetched = on_every(
                lacking,
                lambda host: self._fetch(channels[host], there[host].engine),
                interrupted=cluster.close,
            )
            there |= fetched.require_all()
        require_same(self._image, there)
        return there

    def _fetch(self, channel: Channel, engine: EngineName) -> ContainerThere:
        try:
            return channel.wait(self._post(channel, pull=True), PULL_SECONDS)
        except LostError:
            raise
        except MusterError as error:
            login = (
                f"log in to its registry there ({engine} login), or " if _REFUSED.search(error.reason) else ""
            )
            bring = what_brings(self._image, engine)
            raise MusterError(
                f"{error.reason}; {login}bring it from here: {bring}", host=channel.host
            ) from None

    def _post(self, channel: Channel, *, pull: bool) -> Future[ContainerThere]:
        return channel.post(CONTAINER, self._survey, image=self._image, engine=self._engine, pull=pull)

    def _lacks(self, there: ContainerThere) -> str:
        if there.engine == "apptainer":
            return f"there is no {self._image}; bring it: {what_brings(self._image, there.engine)}"
        return (
            f"{there.engine} has no image {self._image}; a launch lets the host fetch it, a dry run "
            f"does not; or bring it from here: {what_brings(self._image, there.engine)}"
        )
