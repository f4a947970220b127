"""Servers for the tests of ``agentlane.mcp``, which are skipped where its SDK is not installed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATIENCE_S = 60  # a net for what hangs; nothing is measured by it

if find_spec("mcp") is None or find_spec("uvicorn") is None:
    collect_ignore_glob = ["test_*.py"]


class Notes:
    """What servers tell, in order, through a pipe that outlives them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[str] = []
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""
        self._come = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        self._taken = 0

    async def next(self, begins: str = "") -> str:
        """The next line that begins so; those before it are passed over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                while self._taken < len(self.all):
                    line = self.all[self._taken]
                    self._taken += 1
                    if line.startswith(begins):
                        return line
                self._come.clear()
                await self._come.wait()

    async def pid(self) -> int:
        """Of the server that starts next."""
        return int((await self.next("started ")).split()[1])

    def last_pid(self) -> int:
        """Of the server that started last; kill it only where it is known to run."""
        return int(next(line for line in reversed(self.all) if line.startswith("started ")).split()[1])

    def count(self, begins: str) -> int:
        """How many lines have begun so until now."""
        self._read()
        return sum(line.startswith(begins) for line in self.all)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        try:
            *lines, self._rest = (self._rest + os.read(self._descriptor, 1 << 16)).split(b"\n")
        except BlockingIOError:
            return
        self.all.extend(line.decode() for line in lines)
        self._come.set()


class Servers:
    """Makes servers: the command of one for stdio, a running one for HTTP."""

    def __init__(self, zygote: str, notes: Notes) -> None:
        self.zygote = zygote
        self.notes = notes
        self._held: list[socket.socket] = []
        self._processes: list[int] = []

    def stdio(self, *arguments: str) -> dict[str, Any]:
        """What a ``StdioServer`` is given beside its name."""
        return {
            "command": sys.executable,
            "args": ["-I", "-S", str(HERE / "through.py"), "stdio", *arguments],
            "env": self.environment(),
        }

    def environment(self) -> dict[str, str]:
        return {"ZYGOTE": self.zygote, "NOTES": str(self.notes.path)}

    async def http(self, port: int = 0, *arguments: str) -> int:
        """The port of a server that listens by now."""
        self.fork("http", str(port), *arguments)
        return int((await self.notes.next("port ")).split()[1])

    async def kill(self) -> None:
        """Kill the server that was forked last; it is gone on return."""
        os.kill(self.notes.last_pid(), signal.SIGKILL)
        await self.gone()

    async def gone(self) -> None:
        """Return once the process that was forked last is gone, with all that it listened on."""
        loop, process, ended = asyncio.get_running_loop(), self._processes[-1], asyncio.Event()
        loop.add_reader(process, ended.set)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
        finally:
            loop.remove_reader(process)

    def fork(self, *arguments: str) -> socket.socket:
        """A process of the zygote; reading from what is given ends when it does."""
        asked = {"arguments": list(arguments), "environment": self.environment(), "tell": True}
        held = socket.socket(socket.AF_UNIX)
        self._held.append(held)
        held.connect(self.zygote)
        with open(os.devnull, "r+b") as nothing:
            socket.send_fds(held, [json.dumps(asked).encode()], [nothing.fileno()] * 2 + [2])
        with held.makefile() as told:
            self._processes.append(os.pidfd_open(int(told.readline())))
        return held

    def close(self) -> None:
        for held in self._held:
            held.close()
        for process in self._processes:
            os.close(process)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of the process that makes servers."""
    path = str(tmp_path_factory.mktemp("zygote") / "s")
    process = subprocess.Popen([sys.executable, str(HERE / "zygote.py"), path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 5) == b"ready"
    yield path
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
async def notes(tmp_path: Path) -> AsyncIterator[Notes]:
    """What servers tell."""
    made = Notes(tmp_path / "notes")
    yield made
    made.close()


@pytest.fixture
async def servers(zygote: str, notes: Notes) -> AsyncIterator[Servers]:
    """What makes servers; those that are left end with it."""
    made = Servers(zygote, notes)
    yield made
    made.close()
