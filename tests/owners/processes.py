"""The test's side of processes that have parts: they are told what to do, listened to, killed, and judged."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentlane import open_session
from agentlane.testing.invariants import check_invariants
from tests.kills.children import PATIENCE_S, Zygote
from tests.owners.actor import LOG, store_at


class Refused(Exception):
    """What a process was told instead of what it asked for."""

    def __init__(self, code: str, text: str, owner: dict[str, Any], cause: str | None) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.owner, self.cause = code, text, owner, cause


class Process:
    """One process. ``said`` is everything that it said in the middle of its calls."""

    def __init__(self, zygote: Zygote, kind: str, place: Path) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        with theirs:
            self.pid = zygote.fork(json.dumps([kind, str(place)]).encode(), [theirs.fileno()])
        self._zygote = zygote
        self._lines = self._socket.makefile("rb")
        self.said: list[list[Any]] = []
        self.ended = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def do(self, call: str, **arguments: Any) -> Any:
        """Have it done; what it gave. ``Refused`` for what was raised."""
        self.begin(call, **arguments)
        return self.result()

    def begin(self, call: str, **arguments: Any) -> None:
        """Have it begin."""
        self._socket.sendall(json.dumps([call, arguments]).encode() + b"\n")

    def result(self) -> Any:
        """What came of the call that was begun."""
        while (answer := self._answer()) is not None:
            if "ok" in answer:
                return answer["ok"]
        raise AssertionError(f"process {self.pid} ended; it said {self.said[-5:]}")

    def until(self, word: str, times: int = 1) -> None:
        """Listen until it has said this so often from here on."""
        while times:
            answer = self._answer()
            assert answer is not None and "said" in answer, f"process {self.pid}: {answer}; it said {self.said[-5:]}"
            times -= answer["said"][0] == word

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait until it is gone; what it had still said is heard."""
        if not self.ended:
            self.ended = True
            self.signal(signal.SIGKILL)
            while self._answer() is not None:
                pass
            self._lines.close()
            self._socket.close()
            assert self._zygote.code(self.pid) == -signal.SIGKILL

    @property
    def wrote(self) -> dict[str, int]:
        """The commits that were reported to it, with their numbers."""
        return {words[1]: words[2] for words in self.said if words[0] == "wrote"}

    @property
    def begun(self) -> set[str]:
        """Those that it began."""
        return {words[1] for words in self.said if words[0] == "begins"}

    def _answer(self) -> dict[str, Any] | None:
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(line)
        if "said" in answer:
            self.said.append(answer["said"])
        if "error" in answer and not self.ended:
            raise Refused(answer["error"], answer["text"], answer["owner"], answer["cause"])
        return answer


class Stage:
    """A place for a store of one kind, and the processes that want it."""

    def __init__(self, zygote: Zygote, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder / "place"
        self.folder.mkdir()
        self.place = self.folder / ("sessions" if kind == "jsonl" else "sessions.db")
        self._zygote = zygote
        self.processes: list[Process] = []
        self.orphans: set[int] = set()

    @property
    def data(self) -> Path:
        """The file that session ``s`` is in."""
        return self.place / "s.jsonl" if self.kind == "jsonl" else self.place

    @property
    def lock(self) -> Path:
        return self.data.with_name(self.data.name + ".lock")

    def beside(self, suffix: str) -> Path:
        return self.data.with_name(self.data.name + suffix)

    @property
    def owned(self) -> str:
        """The code of what a second owner is told."""
        return "session_owned" if self.kind == "jsonl" else "store_owned"

    def process(self) -> Process:
        self.processes.append(Process(self._zygote, self.kind, self.place))
        return self.processes[-1]

    def owner(self) -> Process:
        """A process that owns session ``s``, which it made."""
        process = self.process()
        process.do("create", id="s")
        process.do("open")
        return process

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """Processes that are told to be ready wait until this is left."""
        with (self.folder / "barrier").open("w") as barrier:
            fcntl.flock(barrier, fcntl.LOCK_EX)
            yield

    def end(self) -> None:
        for orphan in list(self.orphans):
            self.end_orphan(orphan)
        for process in self.processes:
            process.kill()

    def end_orphan(self, pid: int) -> None:
        """End the child of a process that was killed."""
        self.orphans.discard(pid)
        os.kill(pid, signal.SIGKILL)

    def names(self) -> set[str]:
        """What lies at the place, without what the test put there."""
        there = {each.name for each in self.folder.iterdir()} - {"witness", "barrier"}
        if self.kind == "jsonl" and self.place.is_dir():
            there |= {f"sessions/{each.name}" for each in self.place.iterdir()}
        return there

    async def judge(self, wrote: dict[str, int], begun: set[str] | None = None) -> None:
        """Session ``s`` holds each commit that was reported, once, at its number; of others only such as were begun."""
        store = store_at(self.kind, str(self.place))
        try:
            async with open_session(store, session_id="s", read_only=True) as session:
                found = await session.elements(LOG)
                assert await check_invariants(session) == []
                assert not session.findings
        finally:
            await store.close()
        texts = [text for _, text in found]
        assert len(texts) == len(set(texts)), "a commit is there twice"
        assert {text: seq for seq, text in found if text in wrote} == wrote
        assert set(texts) - set(wrote) <= (begun or set())
        if self.kind == "sqlite":
            database = sqlite3.connect(self.place)
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            database.close()
