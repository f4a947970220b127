"""The parent's side of a child process: it is started by a zygote or afresh, listened to, signalled and waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.kills.reports import Job, Report, encode_job, read_report

PATIENCE_S = 60
"""A net for what hangs; nothing is measured by it."""

SCRIPT = Path(__file__).with_name("zygote.py")

PRESSES_MAX = 1_000
PRESS_S = 0.02
"""How long a person waits for an answer before pressing again; what comes of it does not depend on it."""
READ_BYTES = 1 << 16


class Hangs(AssertionError):
    """A child said nothing and did not end."""


class Child:
    """One process. ``reports`` is everything it has said so far, in order."""

    def __init__(self, pid: int, reports: int, gate: int, wait: Callable[[], int]) -> None:
        self.pid = pid
        self.reports: list[Report] = []
        self._descriptor = reports
        self._gate = gate
        self._wait = wait
        self._rest = b""
        self._lines: list[bytes] = []
        self._ended = False

    def next(self) -> Report | None:
        """The next line, waited for; None if the process has said its last."""
        while not self._lines:
            if self._ended:
                return None
            if not select.select([self._descriptor], [], [], PATIENCE_S)[0]:
                self.signal(signal.SIGKILL)
                raise Hangs(f"process {self.pid} says nothing any more; its last words: {self.reports[-5:]}")
            read = os.read(self._descriptor, READ_BYTES)
            self._ended = not read
            *self._lines, self._rest = (self._rest + read).split(b"\n")
        report = read_report(self._lines.pop(0))
        self.reports.append(report)
        return report

    def until(self, kind: type[Report]) -> bool:
        """Listen until a report of this kind comes; False if the process ends before."""
        while (report := self.next()) is not None:
            if isinstance(report, kind):
                return True
        return False

    def signal(self, number: int) -> None:
        """Send a signal; a process that is gone by itself does not mind."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def press(self, number: int) -> None:
        """Send a signal again and again, whenever something is said and a little later, until the process is gone."""
        for _ in range(PRESSES_MAX):
            self.signal(number)
            if (self._lines or select.select([self._descriptor], [], [], PRESS_S)[0]) and self.next() is None:
                return
        raise Hangs(f"process {self.pid} did not end after signal {number} came {PRESSES_MAX} times")

    def open_gate(self) -> None:
        """Let it go on that waits at its gate."""
        os.write(self._gate, b"g")

    def end(self) -> int:
        """Listen to its end and wait for it: its exit code, or the number of its signal, negative."""
        while self.next() is not None:
            pass
        os.close(self._descriptor)
        os.close(self._gate)
        return self._wait()


class Zygote:
    """A process that forks children which need not import anything."""

    def __init__(self, script: Path = SCRIPT) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        self._codes: dict[int, int] = {}
        self._rest = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", str(script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment(),
            )

    def start(self, job: Job) -> Child:
        """A forked child that does the job."""
        with _ends() as (reports, gate, theirs):
            pid = self.fork(encode_job(job), theirs)
        return Child(pid, reports, gate, lambda: self.code(pid))

    def fork(self, text: bytes, descriptors: list[int]) -> int:
        """A forked child that has copies of ``descriptors`` and begins with ``text``: its number."""
        socket.send_fds(self._socket, [text], descriptors)
        while (began := self._listen()) is None:
            pass
        return began

    def close(self) -> None:
        """End it, and every child that still lives."""
        self._socket.close()
        self._process.wait(PATIENCE_S)

    def code(self, pid: int) -> int:
        """Wait for a child's end: its exit code, or the number of its signal, negative."""
        while pid not in self._codes:
            self._listen()
        return self._codes.pop(pid)

    def _listen(self) -> int | None:
        """Take the next answer: the process that began, or None for one that ended, which is kept."""
        while b"\n" not in self._rest:
            read = self._socket.recv(READ_BYTES)
            assert read, "the zygote is gone"
            self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        what, pid, *status = line.decode().split()
        if what == "began":
            return int(pid)
        self._codes[int(pid)] = os.waitstatus_to_exitcode(int(status[0]))
        return None


def fresh(job: Job) -> Child:
    """A child with an interpreter of its own."""
    with _ends() as (reports, gate, theirs):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("life.py")), *map(str, theirs)],
            stdin=subprocess.PIPE,
            pass_fds=theirs,
            env=environment(),
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(encode_job(job))
    return Child(process.pid, reports, gate, lambda: process.wait(PATIENCE_S))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def _ends() -> Iterator[tuple[int, int, list[int]]]:
    """Our ends of a child's two pipes, and its own, which are closed here afterwards."""
    reports, theirs = os.pipe()
    their_gate, gate = os.pipe()
    try:
        yield reports, gate, [theirs, their_gate]
    finally:
        os.close(theirs)
        os.close(their_gate)
