"""One command in a process group of its own: its output as it comes, and nothing of it left when the call is over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Literal

from agentlane.tools.workspace.limits import WorkspaceLimits
from agentlane.tools.workspace.output import Output

CHUNK_BYTES = 1 << 16
KILLED_MS = 1_000
"""How long the end of a killed process is waited for; after that a thread of its own does."""
POLL_SECONDS = 0.02

End = Literal["exited", "timeout", "too much output"]


class Command:
    """A running command. ``follow`` waits for its end; ``stop`` must be called, and waited for, whatever happened."""

    def __init__(self, argv: list[str], folder: str, environment: Mapping[str, str], limits: WorkspaceLimits) -> None:
        self.output = Output(bytes_max=limits.output_bytes, lines_max=limits.output_lines)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._ended = False
        self._watched: list[int] = []
        self._reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)
        os.set_blocking(self._reader, False)
        self._watch(self._reader, self._read)
        self._poll: asyncio.Task[None] | None = None
        try:
            self._watch(os.pidfd_open(self._process.pid), self._end)
        except (AttributeError, OSError):  # not on this system
            self._poll = self._loop.create_task(self._polled())

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while that is not known."""
        return self._process.returncode

    async def follow(self, timeout_ms: int, tell: Callable[[Output], Awaitable[None]]) -> End:
        """Until it has ended, took too long or said too much; ``tell`` is called as output comes."""
        told = 0
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while not self._ended:
                    await self._changed.wait()
                    self._changed.clear()
                    if self.output.total > self._limits.output_total_bytes:
                        return "too much output"
                    if self.output.total > told:
                        told = self.output.total
                        await tell(self.output)
        except TimeoutError:
            return "exited" if self._ended else "timeout"
        return "exited"

    async def stop(self) -> None:
        """End its whole process group, first politely; take what it had said, and its exit code.

        Cancelled in the middle, the group is killed at once.
        """
        try:
            if not self._ended:
                self._signal(signal.SIGTERM)
                await self._end_within(self._limits.stop_ms)
                self._signal(signal.SIGKILL)
                await self._end_within(KILLED_MS)
        finally:
            self._signal(signal.SIGKILL)  # what it left running is in its group still, and its own id is not free yet
            self._close()

    async def _end_within(self, time_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(time_ms / 1_000):
                while not self._ended:
                    await self._changed.wait()
                    self._changed.clear()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the latter is said of a group of the dead on macOS
            os.killpg(self._process.pid, number)

    def _close(self) -> None:
        while self._reader in self._watched and self._read():
            pass
        for watched in tuple(self._watched):
            self._unwatch(watched)
        if self._poll is not None:
            self._poll.cancel()
        if self._ended:
            self._process.wait()
        elif self._process.poll() is None:
            threading.Thread(target=self._process.wait, name="agentlane-reaper", daemon=True).start()

    def _read(self) -> bool:
        """Take what has come; False if there is nothing now, or never more."""
        try:
            chunk = os.read(self._reader, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._unwatch(self._reader)
            return False
        self.output.add(chunk)
        self._changed.set()
        return self.output.total <= self._limits.output_total_bytes

    def _end(self) -> None:
        self._ended = True
        self._changed.set()
        for watched in tuple(self._watched):
            if watched != self._reader:
                self._unwatch(watched)

    async def _polled(self) -> None:
        """For systems that do not tell when a process has ended."""
        while self._process.poll() is None:
            await asyncio.sleep(POLL_SECONDS)
        self._end()

    def _watch(self, file: int, callback: Callable[[], object]) -> None:
        self._watched.append(file)
        self._loop.add_reader(file, callback)

    def _unwatch(self, file: int) -> None:
        self._watched.remove(file)
        self._loop.remove_reader(file)
        os.close(file)
