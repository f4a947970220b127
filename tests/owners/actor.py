"""A process that does one thing after another with a store, as it is told, and says what came of each.

    python actor.py DESCRIPTOR

A zygote forks one for each job of the socket DESCRIPTOR; its name is the method of ``Actor`` that is called, with
arguments, once a line. An answer is a line too: ``ok`` with a value, ``error`` with what was raised, and in the middle
of a call ``said``. Between two calls no event loop runs, so that a fork is one of a program that stands still.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sqlite3
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentlane import (
    AgentLaneError,
    ListAddress,
    Session,
    SessionOwned,
    StoreOwned,
    ValueAddress,
    open_session,
)
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.storage.contract import Store
from tests.kills.zygote import serve

LOG = ListAddress("app.owners", "log", str)
LAST = ValueAddress("app.owners", "last", str)
MARK = "owners"
WAYS_OUT = "close it there, end that process, or open read-only"
BUSY_TIMEOUT_MS = 50
COMMITS = 10
"""How many commits a worker makes beside each other thing that it does."""
EXITING = 4
"""Among a process's flags: it is on its way to its end (PF_EXITING)."""
NOBODY = 65534
OTHERS_MAX = 3
"""How many sessions beside the worker's are made, at most, before the oldest of them is deleted."""


def store_at(kind: str, place: str) -> Store:
    if kind == "jsonl":
        return JsonlStore(place, durability="process")
    return SqliteStore(place, durability="process", busy_timeout_ms=BUSY_TIMEOUT_MS)


class Actor:
    """One process's part. ``witness`` is locked by whoever believes to be the owner: there is one at a time."""

    def __init__(self, talk: socket.socket, kind: str, place: str) -> None:
        self.witness = os.open(Path(place).with_name("witness"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.barrier = os.open(Path(place).with_name("barrier"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.kind, self.place = kind, place
        self.talk = talk
        self.lines = talk.makefile("rb")
        # No epoll: a child's share of it would be that of the parent.
        self.loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self.run = self.loop.run_until_complete
        self.store: Store | None = None
        self.session: Session | None = None
        self.number = 0
        self.others: list[str] = []

    def serve(self) -> None:
        for line in self.lines:
            name, arguments = json.loads(line)
            try:
                answer = {"ok": getattr(self, name)(**arguments)}
            except (AgentLaneError, OSError, sqlite3.Error) as error:
                cause = error.__cause__
                answer = {
                    "error": getattr(error, "code", type(error).__name__),
                    "text": str(error),
                    "owner": getattr(error, "details", {}).get("owner", {}),
                    "cause": None if cause is None else getattr(cause, "code", type(cause).__name__),
                }
            self.send(answer)

    def send(self, answer: dict[str, Any]) -> None:
        self.talk.sendall(json.dumps(answer).encode() + b"\n")

    def say(self, *words: Any) -> None:
        self.send({"said": words})

    # Opening.

    def ready(self) -> None:
        """Answer, then wait until whoever holds the barrier lets everybody go."""
        self.send({"ok": None})
        fcntl.flock(self.barrier, fcntl.LOCK_SH)
        fcntl.flock(self.barrier, fcntl.LOCK_UN)

    def create(self, id: str) -> None:
        """Make a session, in a store that is there for that alone."""
        store = store_at(self.kind, self.place)
        try:
            self.run(store.create(id))
        finally:
            self.run(store.close())

    def remove(self, id: str = "s") -> None:
        store = store_at(self.kind, self.place)
        try:
            self.run(store.delete(id))
        finally:
            self.run(store.close())

    def open(self, id: str | None = "s", place: str | None = None, create: bool = False) -> dict[str, Any]:
        """Own a session: its number of ownership, and what is in its log."""
        store = store_at(self.kind, place or self.place)
        try:
            session = self.run(_opened(store, id, create=create))
        except BaseException:
            self.run(store.close())
            raise
        self.be_the_only_one()
        self.store, self.session = store, session
        return {"id": session.id, "epoch": session._runtime.storage.epoch, "log": self.run(_log(session))}

    def be_the_only_one(self) -> None:
        """Be the one owner there is. One that was killed may hold the witness a moment longer than the session."""
        try:
            fcntl.flock(self.witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = int(os.pread(self.witness, 20, 0))
            assert _is_dying(other), f"process {other} is an owner too"
            fcntl.flock(self.witness, fcntl.LOCK_EX)
        os.pwrite(self.witness, f"{os.getpid():20}".encode(), 0)

    def contend(self) -> dict[str, Any]:
        """Try to own it until it can be had; whom it was refused for, how often, and what ``open`` tells."""
        refused: dict[int, int] = {}
        self.say("contends")
        while True:
            try:
                return {**self.open(), "refused": refused}
            except (SessionOwned, StoreOwned) as error:
                text, owner = str(error), error.details["owner"]
            assert WAYS_OUT in text
            if owner:  # it may have no name for a moment, while it is being written
                assert {"pid", "host", "since"} <= owner.keys()
                assert f"by process {owner['pid']} on" in text
                refused[owner["pid"]] = refused.get(owner["pid"], 0) + 1

    def close(self) -> None:
        assert self.store is not None and self.session is not None
        fcntl.flock(self.witness, fcntl.LOCK_UN)
        session, store, self.session, self.store = self.session, self.store, None, None
        try:
            self.run(session.close())
        finally:
            self.run(store.close())

    def reopen(self) -> list[str]:
        assert self.session is not None
        self.run(self.session.reopen())
        return [text for _, text in self.run(_log(self.session))]

    # Working.

    def append(self, label: str) -> int:
        assert self.session is not None
        seq = self.run(self.session.append(LOG, label))
        self.run(self.session.set_value(LAST, label))
        return seq

    def compact(self) -> None:
        assert self.session is not None
        self.run(self.session.compact_storage())

    def work(self, beside: str, name: str) -> None:
        """Commit for ever, and do something else in between; say what each commit was told to be, and each round."""
        session = self.session
        assert session is not None
        do: Callable[[Session], Awaitable[Any]] = getattr(self, f"_{beside}")

        async def rounds() -> None:
            while True:
                doing = asyncio.ensure_future(do(session))
                for _ in range(COMMITS):
                    label = f"{name}-{self.number}"
                    self.number += 1
                    self.say("begins", label)
                    self.say("wrote", label, await session.append(LOG, label))
                    await session.set_value(LAST, label)
                    await asyncio.sleep(0)
                await doing
                self.say("round")

        self.run(rounds())

    async def _nothing(self, session: Session) -> None:
        pass

    async def _compact(self, session: Session) -> None:
        await session.compact_storage()

    async def _search(self, session: Session) -> None:
        if "main" not in session.branches():
            await session.create_branch("main")
        await session.branch("main").append_custom("note", {"text": "owners"})
        await session.search("owners")

    async def _fork(self, session: Session) -> None:
        """A load, into the same store."""
        await self._forget(session)
        self.others.append((await session.fork()).id)

    async def _backup(self, session: Session) -> None:
        target = f"{self.place}.{os.getpid()}.backup" + (".db" if self.kind == "sqlite" else "")
        store = store_at(self.kind, target)
        try:
            for each in await store.list():
                await store.delete(each.id)
            await session.backup(store)
        finally:
            await store.close()

    async def _delete(self, session: Session) -> None:
        assert self.store is not None
        self.others.append((await self.store.create()).id)
        await self._forget(session, keep=0)

    async def _optimize(self, session: Session) -> None:
        assert isinstance(self.store, SqliteStore)
        await self._fork(session)
        await self._forget(session, keep=0)
        await self.store.optimize()

    def tidy(self) -> None:
        """Remove what is not of our session, or superseded."""

        async def tidying() -> None:
            assert self.session is not None and self.store is not None
            await self.session.fork()  # a load clears away what is left of one that was killed
            for each in await self.store.list():
                if each.id != self.session.id:
                    await self.store.delete(each.id)
            if isinstance(self.store, SqliteStore):
                await self.store.optimize()
            await self.session.compact_storage()

        self.run(tidying())

    async def _forget(self, session: Session, keep: int = OTHERS_MAX) -> None:
        assert self.store is not None
        while len(self.others) > keep:
            await self.store.delete(self.others.pop(0))

    # Reading.

    def read(self, id: str = "s") -> list[str]:
        """What is in the log now."""
        return [text for _, text in self.run(self._read_once(id))]

    async def _read_once(self, id: str) -> list[tuple[int, str]]:
        store = store_at(self.kind, self.place)
        try:
            async with open_session(store, session_id=id, read_only=True) as session:
                return await _log(session)
        finally:
            await store.close()

    def hold(self, id: str = "s") -> int:
        """Open it for reading, and keep it; how many are in the log."""
        self.store = store_at(self.kind, self.place)
        self.session = self.run(_opened(self.store, id, read_only=True))
        return len(self.run(_log(self.session)))

    def look(self) -> list[str]:
        """What the session that is open has in its log, page by page."""
        assert self.session is not None
        return [text for _, text in self.run(_log(self.session, limit=7))]

    def close_reader(self) -> None:
        assert self.store is not None and self.session is not None
        session, store, self.session, self.store = self.session, self.store, None, None
        self.run(session.close())
        self.run(store.close())

    def become_nobody(self) -> None:
        os.setuid(NOBODY)

    def watch(self, times: int) -> list[int]:
        """Read again and again, each time anew: how many there were. What was there is there the next time."""
        counts, before = [], list[tuple[int, str]]()
        self.say("watches")
        for _ in range(times):
            found = self.run(self._read_once("s"))
            assert found[: len(before)] == before, (before, found)
            assert [seq for seq, _ in found] == sorted({seq for seq, _ in found})
            counts.append(len(found))
            before = found
        return counts

    def watch_for_ever(self) -> None:
        self.say("watches")
        while True:
            self.run(self._read_once("s"))

    # Harm.

    def stray(self, *, path: str) -> None:
        """Open and close a file by other means, which drops the locks this process has on it."""
        with open(path, "rb") as file:
            file.read(1)

    def statements(self, *, path: str, texts: list[str]) -> list[Any]:
        """What another program does to a database that it opens for that."""
        other = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            return [other.execute(text).fetchall() for text in texts]
        finally:
            other.close()

    def transaction(self, *, path: str, texts: list[str]) -> None:
        """The same, with the connection left open."""
        self.other = sqlite3.connect(path, isolation_level=None, timeout=0)
        for text in texts:
            self.other.execute(text).fetchall()

    def end_transaction(self) -> None:
        self.other.rollback()
        self.other.close()

    def descriptors(self) -> list[str]:
        """What is open, without what only says so."""
        gc.collect()
        return sorted(filter(None, map(_target, os.listdir("/proc/self/fd"))))

    # Forking.

    def fork(self, *, how: str) -> list[str]:
        """What a forked child was told when it used the session, its parent's store, and one of its own; its exit."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        if how == "multiprocessing":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                process = multiprocessing.get_context("fork").Process(target=self._child, args=(theirs,))
                process.start()
            theirs.close()
            told = ours.makefile("r").read().split()
            process.join()
            return [*told, str(process.exitcode)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            ours.close()
            code = 1
            try:
                self._child(theirs)
                code = 0
            finally:
                if how == "exit" or code:
                    os._exit(code)
            theirs.close()
            self.talk.close()
            sys.exit(0)
        assert os.getpid() == parent
        theirs.close()
        told = ours.makefile("r").read().split()
        return [*told, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))]

    def _child(self, talk: socket.socket) -> None:
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: _session(self).append(LOG, "child"),
            lambda: _log(_session(self)),
            lambda: _opened(store_at(self.kind, self.place), "s"),
        ]
        for use in uses:
            try:
                self.run(_awaited(use))
            except AgentLaneError as error:
                talk.sendall(f"{error.code} ".encode())
            else:
                talk.sendall(b"done ")
        self.session = self.store = None
        gc.collect()

    def fork_and_open(self) -> list[str]:
        """What a child finds that opens the session for itself, and commits."""
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            ours.close()
            try:
                self.open()
                self.append("child")
                self.close()
                theirs.sendall(" ".join(self.read()).encode())
            finally:
                os._exit(0)
        theirs.close()
        told = ours.makefile("r").read().split()
        os.waitpid(child, 0)
        return told

    def fork_and_leave(self) -> int:
        """A child that lives on, and does nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(self.talk.fileno())
            os.close(self.witness)
            signal.pause()
        self.child = child
        return child

    def end_child(self) -> None:
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def _session(actor: Actor) -> Session:
    assert actor.session is not None
    return actor.session


async def _awaited(use: Callable[[], Awaitable[Any]]) -> Any:
    return await use()


async def _opened(store: Store, id: str | None, *, create: bool = False, read_only: bool = False) -> Session:
    return await open_session(store, session_id=id, create=create, read_only=read_only)


async def _log(session: Session, limit: int | None = None) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while True:
        page = await session.elements(LOG, after=found[-1][0] if found else None, limit=limit)
        found += page
        if limit is None or len(page) < limit:
            return found


def _is_dying(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(status.rpartition(")")[2].split()[6]) & EXITING)


def _target(descriptor: str) -> str | None:
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # that of the listing itself
        return None
    return target if target.startswith("/") and not target.startswith("/proc/") else None


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        given = serve(parent)
    if given is not None:
        text, (descriptor,) = given
        kind, place = json.loads(text)
        Actor(socket.socket(fileno=descriptor), kind, place).serve()
