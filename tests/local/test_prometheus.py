"""A real Prometheus (Debian's `prometheus`) scrapes a job and its host; the dashboard has data."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.launching import MUSTER, ROOT, Project
from tests.waiting import read_until, wait_until

PROMETHEUS = shutil.which("prometheus")
PAGE = ROOT / "docs" / "how-to" / "monitoring.md"
DASHBOARD = ROOT / "docs" / "how-to" / "muster-grafana.json"
PROGRAM = """
import time
for step in range(6000):
    print("step", step, flush=True)
    time.sleep(0.1)
"""


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def has_data(port: int, query: str) -> bool:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with suppress(OSError), urllib.request.urlopen(url) as answer:  # not up yet
        return bool(json.load(answer)["data"]["result"])
    return False


def test_hosts_without_a_job_are_scraped_until_the_user_ends_it(project: Project) -> None:
    (port,) = free_ports(1)
    command = [str(MUSTER), "top", "--hosts", "hosts.txt", "--metrics", str(port)]

    def scraped() -> str:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())
        return ""  # not up yet

    with subprocess.Popen(command, cwd=project.path, env=project.env) as top:
        try:
            wait_until(lambda: 'muster_host_up{host="localhost"} 1.0' in scraped(), scraped)
            assert 'muster_host_jobs{host="localhost"} 0.0' in scraped()
        finally:
            top.terminate()
    assert top.returncode == 143


@pytest.mark.soak
@pytest.mark.skipif(not PROMETHEUS, reason="no prometheus here")
def test_each_query_of_the_dashboard_has_data_while_a_job_runs(project: Project, tmp_path: Path) -> None:
    launch, hosts, web = free_ports(3)
    (project.path / "steps.py").write_text(PROGRAM)
    (config,) = re.findall(r"```yaml\n# prometheus\.yml\n(.*?)```", PAGE.read_text(), re.S)
    config = config.replace(":9400", f":{launch}").replace(":9401", f":{hosts}")
    (tmp_path / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s}}\n{config}")
    top = [str(MUSTER), "top", "--hosts", "hosts.txt", "--metrics", str(hosts)]
    prometheus = [
        *(
            str(PROMETHEUS),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ),
        *(f"--web.listen-address=127.0.0.1:{web}", "--log.level=error"),
    ]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    of_cpus = [query for query in queries if "muster_gpu_" not in query]  # this machine may have no GPU
    with ExitStack() as stack:
        driver = stack.enter_context(project.start("--metrics", str(launch), "steps.py"))
        stack.callback(driver.terminate)
        read_until(driver, "step 1", 2)
        for command in (top, prometheus):
            process = stack.enter_context(subprocess.Popen(command, cwd=project.path, env=project.env))
            stack.callback(process.terminate)

        def empty() -> list[str]:
            return [query for query in of_cpus if not has_data(web, query)]

        wait_until(lambda: not empty(), lambda: f"data of {empty()}")
