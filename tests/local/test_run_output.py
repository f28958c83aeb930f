"""The output that `muster run` reports of a command."""

from __future__ import annotations

import subprocess
import sys

# The reading thread starts only after the command has ended, as on a busy machine.
READS_LATE = """
import queue, threading, time, types
from muster.deploy.features.adhoc.on_host import run_command as commands

class Late(threading.Thread):
    def run(self):
        time.sleep(0.5)
        super().run()

commands.threading = types.SimpleNamespace(Thread=Late, Event=threading.Event)
reports = queue.Queue()
commands.CommandRunner(lambda frame, output: reports.put(output)).do_run(
    {"argv": ["echo", "hello"], "limit": 30.0}, b""
)
print(reports.get(timeout=30))
"""


def test_the_output_of_a_command_that_ends_before_it_is_read_is_kept() -> None:
    # A separate process, because the agent reaps every child of its process.
    argv = [sys.executable, "-c", READS_LATE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "b'hello\\n'\n", done.stderr
