"""A small client of the Debug Adapter Protocol: what an editor sends to a debugger, and what it gets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from tests.waiting import PATIENCE

Message = dict[str, Any]


class Editor:
    """An editor on a connection to a debugger."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self._connection, self._stream = connection, connection.makefile("rb")
        self._sent, self._events = 0, list[Message]()

    def attach(self, local: str, remote: str, *lines: int) -> None:
        """Attach with breakpoints in these lines of `local`/train.py, which the debugger has in `remote`."""
        self.ask("initialize", adapterID="debugpy", pathFormat="path")
        mapping = {"localRoot": local, "remoteRoot": remote}
        self.send("attach", pathMappings=[mapping], justMyCode=True, subProcess=False)
        self.event("initialized")
        answer = self.stop_at(local, *lines)
        assert all(point["verified"] for point in answer["breakpoints"]), answer
        self.ask("configurationDone")

    def stop_at(self, local: str, *lines: int) -> Message:
        """Set breakpoints in these lines, and in no others."""
        source, points = {"path": f"{local}/train.py"}, [{"line": line} for line in lines]
        return self.ask("setBreakpoints", source=source, breakpoints=points)

    def stopped(self) -> list[Message]:
        """The frames of the thread that has come to a breakpoint, innermost first."""
        self.thread = self.event("stopped")["threadId"]
        return list(self.ask("stackTrace", threadId=self.thread)["stackFrames"])

    def variables(self, frame: Message) -> dict[str, str]:
        scope = self.ask("scopes", frameId=frame["id"])["scopes"][0]
        shown = self.ask("variables", variablesReference=scope["variablesReference"])["variables"]
        return {each["name"]: each["value"] for each in shown}

    def evaluate(self, expression: str, frame: Message) -> str:
        return str(self.ask("evaluate", expression=expression, frameId=frame["id"])["result"])

    def resume(self) -> None:
        self.ask("continue", threadId=self.thread)

    def send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        request = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._connection.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return self._sent

    def ask(self, command: str, **arguments: Any) -> Message:
        """Send a request, and return the body of its answer."""
        number = self.send(command, **arguments)
        answer = self._next(lambda message: message.get("request_seq") == number)
        assert answer["success"], answer
        return dict(answer.get("body") or {})

    def event(self, name: str) -> Message:
        """Wait for an event; returns its body."""
        return dict(self._next(lambda message: message.get("event") == name).get("body") or {})

    def rest(self) -> list[str]:
        """The events until the debugger closes the connection."""
        while message := self._read():
            self._events.append(message)
        return [str(message.get("event")) for message in self._events]

    def close(self) -> None:
        """Close the connection, as at the end of an editor or of its network."""
        self._connection.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._connection.close()

    def _next(self, fits: Callable[[Message], bool]) -> Message:
        while True:
            for message in self._events:
                if fits(message):
                    self._events.remove(message)
                    return message
            message = self._read()
            assert message, f"the debugger has closed the connection after {self._events}"
            self._events.append(message)

    def _read(self) -> Message:
        """The next message; an empty one at the end."""
        size = 0
        while (line := self._stream.readline()) not in {b"\r\n", b""}:
            size = int(line.partition(b":")[2])
        return dict(json.loads(self._stream.read(size))) if size else {}
