"""Files of a host come here whole, with progress reports."""

from __future__ import annotations

from pathlib import Path

from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.adhoc import put_get as transfer


def test_every_byte_that_comes_is_told(tmp_path: Path) -> None:
    there, told = tmp_path / "there", list[tuple[int, int]]()
    (there / "logs").mkdir(parents=True)
    (there / "logs" / "a").write_bytes(b"a" * 3_000_000)
    (there / "b").write_bytes(b"b" * 10)
    with Cluster(hostfile.parse("localhost"), lambda host: LocalPipe(None), facts=False) as cluster:
        (got,) = transfer.get(
            cluster, str(there), tmp_path / "here", lambda *now: told.append(now)
        ).results.values()
    assert (got / "logs" / "a").stat().st_size == 3_000_000
    assert sum(more for more, _ in told) == 3_000_010 and told[-1][1] == 3_000_010
