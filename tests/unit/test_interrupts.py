"""Signals to a command: no one of them is lost, the second bounds its end, and the third ends it."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.deploy.core import interrupts
from tests.launching import MUSTER, ROOT
from tests.waiting import PATIENCE, read_until

SAME_SECONDS = 0.1
"""Signals this close are one here, so that the tests wait less for the next."""
STUCK = """
import ctypes, threading
from pathlib import Path
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
def waits():
    # The state of the main thread, and how often it has begun to wait: who waits for the GIL does so again.
    status = Path(f"/proc/self/task/{os.getpid()}/status").read_text().splitlines()
    return [line.split()[1] for line in status if line.startswith(("State", "voluntary_ctxt"))]
def tell():
    before = []
    while (now := waits()) != before or now[0] != "S":
        before = now
        time.sleep(0.03)
    print("ready", flush=True)
def stuck():
    threading.Thread(target=tell).start()
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)  # no signal ends this
"""
END = """
def end(seconds=0):
    while not interrupts._interrupts.counted:  # by a thread: the next signal counts so many seconds later
        time.sleep(0.01)
    print("ending", flush=True)
    time.sleep(seconds)
    print("ended", flush=True)
"""


@contextmanager
def program(
    text: str, ignored: int = 0, stdin: int = subprocess.DEVNULL, same: float = SAME_SECONDS
) -> Iterator[subprocess.Popen[str]]:
    """A process that says `ready` and then waits for signals."""
    head = "import os, signal, sys, time, weakref\nfrom muster.deploy.core import interrupts\n"
    head += f"interrupts.SAME_SECONDS = {same}\n"

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        if ignored:
            signal.signal(ignored, signal.SIG_IGN)

    with subprocess.Popen(
        [sys.executable, "-c", head + STUCK + END + text],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        cwd=ROOT,
        preexec_fn=prepare,  # noqa: PLW1509
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def strike(process: subprocess.Popen[str], *numbers: int, after: str = "ready") -> tuple[int, str]:
    """Send each signal after the next line with its word; returns the exit status and all that follows."""
    for number in numbers:
        read_until(process, after, 1)
        if after == "ending":
            time.sleep(SAME_SECONDS + 0.1)  # else it is the same signal
        process.send_signal(number)
        after = "ending"
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


DROPPED_BY_A_CALLBACK = """
interrupts.begin()
class Thing: pass
def callback(reference):
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
thing = Thing()
reference = weakref.ref(thing, callback)
try:
    del thing
    while True:
        time.sleep(60)
except KeyboardInterrupt as stop:
    sys.exit(100 + stop.args[0])
"""
DROPPED_BY_A_DESTRUCTOR = DROPPED_BY_A_CALLBACK.replace(
    "class Thing: pass", "class Thing: __del__ = id"
).replace("reference = weakref.ref(thing, callback)", "Thing.__del__ = callback")
DROPPED_BY_US = """
interrupts.begin()
try:
    print("ready", flush=True)
    time.sleep(60)
except BaseException:
    pass
try:
    while True:
        interrupts.check()
        time.sleep(0.01)
except KeyboardInterrupt as stop:
    interrupts.taken()
    interrupts.check()
    sys.exit(100 + stop.args[0])
"""


@pytest.mark.parametrize("text", [DROPPED_BY_A_CALLBACK, DROPPED_BY_A_DESTRUCTOR, DROPPED_BY_US])
def test_an_interrupt_that_python_drops_is_raised_again(text: str) -> None:
    with program(text) as process:
        assert strike(process, signal.SIGINT)[0] == 102


LONG_END = """
interrupts.begin(bound={bound})
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    end(1000)
"""


def test_a_second_signal_bounds_an_end_that_takes_too_long() -> None:
    with program(LONG_END.format(bound=0.2)) as process:
        status, output = strike(process, signal.SIGINT, signal.SIGINT)
    assert status == 130
    assert "ending within 0 s, at once after one more signal; hosts end the rest" in output
    assert "the records of the end are missing" in output


def test_a_third_signal_ends_it_at_once() -> None:
    with program(LONG_END.format(bound=1000)) as process:
        status, output = strike(process, signal.SIGINT, signal.SIGINT, signal.SIGINT)
    assert status == 130
    assert "ended at once" in output


def test_an_orderly_end_has_its_time_after_a_second_signal() -> None:
    text = LONG_END.replace("end(1000)", "end(0.6); sys.exit(7)").format(bound=1000)
    with program(text) as process:
        status, output = strike(process, signal.SIGINT, signal.SIGINT)
    assert (status, "ended\n" in output) == (7, True)


def test_a_supervisor_that_sends_another_signal_leaves_the_end_its_time() -> None:
    text = LONG_END.replace("end(1000)", "end(1.5); sys.exit(7)").format(bound=0.0)
    with program(text) as process:
        status, output = strike(process, signal.SIGINT, signal.SIGTERM)
    assert (status, "ended\n" in output) == (7, True)


def test_a_signal_that_comes_twice_at_once_counts_once() -> None:
    """`timeout` and `uv run` pass on what the terminal sends to all."""
    text = LONG_END.replace("end(1000)", "end(0.5); sys.exit(7)").format(bound=0.0)
    with program(text, same=interrupts.SAME_SECONDS) as process:
        read_until(process, "ready", 1)
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # both at one moment
            process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "ended\n" in output) == (7, True)


def test_two_signals_end_a_process_whose_main_thread_is_stuck() -> None:
    with program("interrupts.begin(bound=0.2)\nstuck()") as process:
        read_until(process, "ready", 1)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == 130


def test_sigquit_ends_it_and_prints_the_stack_of_every_thread() -> None:
    text = 'interrupts.begin()\ntry:\n    print("ready", flush=True)\n    time.sleep(60)\n'
    with program(text + "except KeyboardInterrupt as stop:\n    sys.exit(100 + stop.args[0])") as process:
        status, output = strike(process, signal.SIGQUIT)
    assert status == 103
    assert "most recent call first" in output
    assert "in _count" in output


def test_what_nohup_ignores_stays_ignored() -> None:
    text = 'interrupts.begin()\ntry:\n    print("ready", flush=True)\n    time.sleep(60)\n'
    with program(
        text + "except KeyboardInterrupt as stop:\n    sys.exit(100 + stop.args[0])", signal.SIGHUP
    ) as process:
        read_until(process, "ready", 1)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 115


def test_a_signal_after_the_result_keeps_the_status_of_the_job() -> None:
    text = """
from muster.deploy.cli.command import Exit, exit_on_error
try:
    with exit_on_error(None):
        interrupts.decide(5)
        print("ready", flush=True)
        while not interrupts._interrupts.counted:
            time.sleep(0.01)
        print("verdict", flush=True)
        try:
            with interrupts.interruptible():
                print("page", flush=True)
        except KeyboardInterrupt:
            print("no page", flush=True)
        with interrupts.interruptible():
            pass
except Exit as stop:
    sys.exit(stop.code)
"""
    with program(text) as process:
        status, output = strike(process, signal.SIGINT)
    assert (status, output) == (5, "verdict\nno page\n")


def test_a_signal_just_before_a_wait_ends_the_wait() -> None:
    """Another thread receives the signal here, so that it does not interrupt the wait of the main thread."""
    text = """
import queue
interrupts.begin()
threading.Thread(target=tell).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
try:
    queue.SimpleQueue().get()
except KeyboardInterrupt as stop:
    time.sleep(0.2)  # the end is not interrupted again
    os._exit(100 + stop.args[0])
"""
    with program(text) as process:
        assert strike(process, signal.SIGTERM)[0] == 115


def test_a_prompt_ends_with_the_first_signal() -> None:
    controller, terminal = pty.openpty()
    text = 'interrupts.begin()\ntry:\n    print("ready", flush=True)\n    input()\n'
    with program(
        text + "except KeyboardInterrupt as stop:\n    sys.exit(100 + stop.args[0])", stdin=terminal
    ) as process:
        assert strike(process, signal.SIGTERM)[0] == 115
    os.close(controller)
    os.close(terminal)


def test_a_host_that_does_not_answer_holds_up_no_end(tmp_path: Path) -> None:
    """It accepts a connection and says nothing, and ssh_config allows it ten minutes."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / ".muster").mkdir(mode=0o700)
        config = tmp_path / ".muster" / "ssh_config"
        config.write_text("Host *\n  ConnectTimeout 600\n")
        config.chmod(0o600)
        (tmp_path / "hosts.txt").write_text(f"127.0.0.2 port={port}\nlocalhost\n")
        server.settimeout(PATIENCE)
        with subprocess.Popen(
            [str(MUSTER), "run", "--", "true"],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                taken, _ = server.accept()
                process.send_signal(signal.SIGTERM)
                output, _ = process.communicate(timeout=PATIENCE)
                taken.close()
            finally:
                process.kill()
    assert (process.returncode, output.splitlines()[-1]) == (143, "interrupted while connecting to the hosts")


def test_a_driver_without_a_terminal_ends_at_sigterm_and_not_at_sigint() -> None:
    text = """
from muster.deploy.core.job.driver_on_host import end_at_sigterm_alone
end_at_sigterm_alone()
try:
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt as stop:
    end(0.6)
    sys.exit(100 + stop.args[0])
"""
    with program(text) as process:
        status, output = strike(process, signal.SIGTERM, signal.SIGTERM)
    assert (status, "ended\n" in output) == (115, True)
    assert "ending within 20 s" in output


def test_signals_to_a_forked_child_are_none_of_its_parent() -> None:
    text = f"""
interrupts.begin()
child = os.fork()
if not child:
    for _ in range(2):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pass
        time.sleep({2 * SAME_SECONDS})
    os._exit(0)
os.waitpid(child, 0)
time.sleep({SAME_SECONDS})  # for the thread that counts
print(interrupts._interrupts.counted, flush=True)
"""
    with program(text) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "0\n")
