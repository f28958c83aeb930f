"""A launch says that ranks do not read its standard input, and leaves that input alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from muster.deploy.cli import option_values as options

Opened = tuple[int, list[int]]
"""A descriptor to read, and all descriptors to close."""


def pipe(*parts: bytes, closed: bool = False) -> Opened:
    reader, writer = os.pipe()
    for part in parts:
        os.write(writer, part)
    if closed:
        os.close(writer)
    return reader, [reader] if closed else [reader, writer]


def connection(*parts: bytes, closed: bool = False) -> Opened:
    here, there = socket.socketpair()
    for part in parts:
        there.sendall(part)
    if closed:
        there.shutdown(socket.SHUT_WR)
    return here.fileno(), [here.detach(), there.detach()]


def file(at: int) -> Opened:
    descriptor = os.open(__file__, os.O_RDONLY)
    os.lseek(descriptor, 0, at)
    return descriptor, [descriptor]


def device(name: str) -> Opened:
    descriptor = os.open(name, os.O_RDONLY)
    return descriptor, [descriptor]


def terminal() -> Opened:
    outer, inner = os.openpty()
    os.write(outer, b"a line\n")
    return inner, [outer, inner]


def closed_descriptor() -> Opened:
    descriptor, _ = device(os.devnull)
    os.close(descriptor)
    return descriptor, []


INPUTS: dict[str, tuple[Callable[[], Opened], bool]] = {
    "a pipe with data": (lambda: pipe(b"100\n"), True),
    "a pipe with data whose writer has ended": (lambda: pipe(b"100\n", closed=True), True),
    "a pipe without data": (pipe, False),
    "a pipe that is at its end": (lambda: pipe(closed=True), False),
    "a socket with data": (lambda: connection(b"x"), True),
    "a socket without data": (connection, False),
    "a socket that is at its end": (lambda: connection(closed=True), False),
    "a file": (lambda: file(os.SEEK_SET), True),
    "a file that was read": (lambda: file(os.SEEK_END), False),
    "an empty file": (lambda: device("/proc/self/status"), False),
    "/dev/null": (lambda: device(os.devnull), False),
    "a terminal": (terminal, False),
    "none": (closed_descriptor, False),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_unread_data_is_noticed_and_left_where_it_is(kind: str) -> None:
    make, expected = INPUTS[kind]
    descriptor, opened = make()
    try:
        assert options.has_data(descriptor) is expected
        assert options.has_data(descriptor) is expected, "it is still there"
    finally:
        for each in opened:
            os.close(each)
