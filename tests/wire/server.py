"""A small HTTP server on loopback that answers from a script: byte for byte, with pauses, and ends that go wrong.

It runs in a thread of its own, one more for each connection, so that it serves clients of other processes too and
nobody has to have an event loop. It speaks HTTP/1.1 with chunked bodies; each piece of a body is one chunk and one
write, so a client's parser sees the borders that the test chose.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

WAIT_MAX_S = 60.0
"""How long anything is waited for before the test that waits fails."""

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests", 500: "Server Error"}

End: TypeAlias = Literal["whole", "cut", "reset", "hang"]


@dataclass(frozen=True)
class Received:
    """One request, as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    data: bytes

    @property
    def body(self) -> Any:
        """The JSON body."""
        return json.loads(self.data)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer: the pieces of its body, and how it ends.

    ``whole``: the body ends as it should, and the connection stays. ``cut``: the connection is closed in the middle of
    the body. ``reset``: it is torn down, so that the other side gets an error. ``hang``: nothing more comes until the
    client goes, or ``server.release()``, after which it ends as ``whole``.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "whole"


Script: TypeAlias = Iterable[Reply] | Callable[[Received], Reply]


class WireServer:
    """Answers requests in the order in which they come, each with the next reply of its script, or with what it makes.

    A request beyond the script gets a 500 that says so, and is listed in ``surplus``. Use it as a context manager.
    """

    def __init__(self, script: Script = ()) -> None:
        self.requests: list[Received] = []
        self.surplus: list[Received] = []
        self._make = script if callable(script) else None
        self._replies = [] if callable(script) else list(script)
        self._changed = threading.Condition()
        self.connections = 0
        self._hanging = 0
        self._left = 0
        self._released = False
        self._closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._bell = socket.socketpair()
        """Its second end is closed to wake every reply that hangs."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._spawn(self._accept)

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> WireServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, *replies: Reply) -> None:
        """More replies at the end of the script."""
        self._replies += replies

    def hanging(self, count: int = 1) -> None:
        """Return once ``count`` replies have sent all their pieces and hang. Blocks."""
        self._wait(lambda: self._hanging >= count, f"{count} replies do not hang")

    def left(self, count: int = 1) -> None:
        """Return once ``count`` clients have closed their connection on a reply that hangs, or was to. Blocks."""
        self._wait(lambda: self._left >= count, f"{count} clients have not gone")

    def asked(self, count: int) -> None:
        """Return once ``count`` requests have come. Blocks."""
        self._wait(lambda: len(self.requests) >= count, f"{count} requests have not come")

    def release(self) -> None:
        """Let every reply that hangs end as it should, now and later."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
        self._bell[1].close()

    def close(self) -> None:
        """Close every connection and wait for the threads."""
        with self._changed:
            self._closing = True
            sockets = list(self._sockets)
        _shut(self._listener)
        for each in sockets:
            _shut(each)
        for thread in self._threads:
            thread.join(WAIT_MAX_S)
        self._listener.close()
        for end in self._bell:
            end.close()

    def _wait(self, true: Callable[[], bool], why: str) -> None:
        with self._changed:
            if not self._changed.wait_for(true, WAIT_MAX_S):
                raise AssertionError(f"{why}; requests: {[each.path for each in self.requests]}")

    def _count(self, *, hanging: int = 0, left: int = 0) -> None:
        with self._changed:
            self._hanging += hanging
            self._left += left
            self._changed.notify_all()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="wire server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                if self._closing:
                    connection.close()
                    return
                self._sockets.add(connection)
                self.connections += 1
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                while (request := _read(reader)) is not None:
                    with self._changed:
                        self.requests.append(request)
                        reply = self._reply(request)
                        self._changed.notify_all()
                    if not self._answer(connection, reply):
                        return
        except OSError:
            pass  # the client went away in the middle, as many tests want it to
        finally:
            with self._changed:
                self._sockets.discard(connection)

    def _reply(self, request: Received) -> Reply:
        if self._make is not None:
            return self._make(request)
        if self._replies:
            return self._replies.pop(0)
        self.surplus.append(request)
        return Reply(status=500, pieces=[b'{"error": {"message": "the script is used up", "code": "script_used_up"}}'])

    def _answer(self, connection: socket.socket, reply: Reply) -> bool:
        """Send it; whether the connection can take another request."""
        headers = {"content-type": "text/event-stream" if reply.status == 200 else "application/json"}
        headers |= {name.lower(): value for name, value in reply.headers.items()} | {"transfer-encoding": "chunked"}
        lines = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Other')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        try:
            for piece in reply.pieces:
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        except OSError:
            self._count(left=int(reply.end == "hang" and not self._closing))
            raise
        if reply.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if reply.end == "hang":
            self._count(hanging=1)
            gone = self._until_gone(connection)
            self._count(hanging=-1, left=int(gone))
            if gone:
                return False
        if reply.end == "cut":
            return False
        connection.sendall(b"0\r\n\r\n")
        return True

    def _until_gone(self, connection: socket.socket) -> bool:
        """Wait for the client to go, or for the release; whether it has gone."""
        select.select([connection, self._bell[0]], [], [])
        if self._released:
            return False
        try:
            return connection.recv(1, socket.MSG_PEEK) == b"" and not self._closing
        except OSError:
            return True


def pieces(data: bytes, *cuts: int) -> list[bytes]:
    """``data`` cut at these places."""
    places = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(places) if end > start]


def every(data: bytes, length: int) -> list[bytes]:
    """``data`` in pieces of ``length`` bytes: with 1, cut inside every character and every line end."""
    return [data[start : start + length] for start in range(0, len(data), length)]


def sse(
    *events: object, named: bool = False, newline: str = "\n", done: bool = False, keep_alives: bool = False
) -> bytes:
    """Server-sent events of JSON data. ``named`` gives each its ``type`` for its name, ``done`` ends with [DONE]."""
    lines: list[str] = []
    for event in events:
        if keep_alives:
            lines += [": keep-alive", ""]
        if named and isinstance(event, Mapping):
            lines.append(f"event: {event['type']}")
        text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        lines += [f"data: {text}", ""]
    if done:
        lines += ["data: [DONE]", ""]
    return "".join(line + newline for line in lines).encode()


def failure(status: int, body: object, **headers: str) -> Reply:
    """An answer that is an error; ``headers`` with underscores for hyphens."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, pieces=[json.dumps(body).encode()], headers=given)


def _read(reader: Any) -> Received | None:
    first = reader.readline()
    if not first.strip():
        return None
    method, path, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "") == "chunked":
        data = b""
        while (size := int(reader.readline(), 16)) > 0:
            data += reader.read(size)
            reader.readline()
        reader.readline()
    else:
        data = reader.read(int(headers.get("content-length", "0")))
    return Received(method=method, path=path, headers=headers, data=data)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
