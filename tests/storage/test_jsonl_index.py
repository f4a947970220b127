"""Claim: with the index beside it a session file opens without its lines being read, and is exactly what it is without;
whatever is wrong with the index or the file, opening says what it says where no index is."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import AgentLaneError, CorruptSession, InvalidDefinition, UnsupportedFormat
from agentlane.storage import framing, id_rows, index, jsonl_file, jsonl_index
from agentlane.storage.columns import put_index
from agentlane.storage.contract import SessionStorage
from agentlane.storage.files import FileSystem
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_index import IndexHead, index_path, read_index
from agentlane.storage.jsonl_session import JsonlSession
from agentlane.storage.sums import Sums
from agentlane.testing.clock import ManualClock

MARK = b"a payload"
META = b'{"lane":"main","started_at":%d}'


def store_in(folder: Path, files: FileSystem | None = None, **options: Any) -> JsonlStore:
    """A store that keeps an index of every file, and does not clean up by itself."""
    given = {"durability": "process", "compact_share": None, "index_min_bytes": 0, **options}
    return JsonlStore(folder, files=files, clock=ManualClock(), **given)


def some_writes(number: int, payload: bytes = b"1") -> list[Write]:
    """A commit with each kind of write."""
    parent = f"e{number - 1:04}" if number % 7 else None
    writes: list[Write] = [
        InsertEntry(f"e{number:04}", parent, f"kind{number % 3}", payload),
        SetValue(Address("app.v", f"k{number % 5}"), payload),
        InsertUsage(UsageRow(id=f"u{number:04}", kind="attempt", usage=Usage(input_tokens=number))),
        AppendElement(Address("app.l", f"l{number % 4}"), payload),
    ]
    if number % 5 == 4:
        writes += [DeleteValue(Address("app.v", "k1")), DeleteList(Address("app.l", "l2"))]
    if number % 3 == 0:
        writes.append(SetValue(Address("op.meta", f"op{number}"), META % number))
    elif number > 3 and number % 3 == 1:
        writes.append(DeleteValue(Address("op.meta", f"op{number - 4}")))
    return writes


async def make(folder: Path, commits: int = 12, *, payload: bytes = b"1", **options: Any) -> Path:
    """A closed session ``s`` with an index of all of it."""
    store = store_in(folder, **options)
    await store.create("s")
    storage = await store.open("s")
    for number in range(commits):
        await storage.submit(some_writes(number, payload))
    await storage.close()
    path = folder / "s.jsonl"
    assert index_path(path).exists()
    return path


async def usable(path: Path, files: FileSystem | None = None) -> jsonl_index.Kept | None:
    """The index of a file, if it is taken."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return await read_index(JsonlFile(files or FileSystem(), path, descriptor, "s"), lambda: None)
    finally:
        os.close(descriptor)


class Parts:
    """A sink that keeps the parts."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def put(self, part: bytes | memoryview) -> None:
        self.all.append(bytes(part))


async def seen(storage: SessionStorage) -> tuple[object, ...]:
    """All that can be read of a session, its findings, and the columns of its index."""
    assert isinstance(storage, JsonlSession)
    parts = Parts()
    put_index(storage._index, parts)
    entries = await storage.scan()
    paths = [await storage.path(each.id, newest_first=False, payloads=False) for each in entries[-3:]]
    used = [each.id for each in entries] + [each.row.id for each in await storage.usage()]
    rows = [storage._index.rows.get(each) for each in used], await storage.entries(used[::3])
    snapshot = await storage.snapshot()
    everything = [row async for page in snapshot.pages() for row in page]
    await snapshot.close()
    stands = storage.stats(), snapshot.last_seq, storage.epoch, storage.findings, storage._operations
    return everything, parts.all, paths, rows, stands


async def answer(folder: Path, *, with_index: bool, read_only: bool = True) -> tuple[object, ...] | str:
    """What an opening leads to: all that can be read, or the error."""
    store = store_in(folder, **({} if with_index else {"index_min_bytes": None}))
    try:
        storage = await store.open("s", read_only=read_only)
    except AgentLaneError as error:
        return f"{type(error).__name__}: {error} {error.details}"
    try:
        return await seen(storage)
    finally:
        storage.kill()


class CountedFiles(FileSystem):
    """Counts what is read, and keeps the names of calls that change something."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.changes: list[str] = []

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self.changes.append(f"open {path.name}")
        return super().open(path, flags, mode)

    def rename(self, path: Path, to: Path) -> None:
        self.changes.append(f"rename {to.name}")
        super().rename(path, to)

    def unlink(self, path: Path) -> None:
        self.changes.append(f"unlink {path.name}")
        super().unlink(path)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        found = super().pread(descriptor, size, offset)
        self.bytes_read += len(found)
        return found


LEFT_OVER = ["unlink .s.jsonl.index.new"]
"""What is done for nothing, but where an owner died while it wrote one."""
WRITTEN = ["open .s.jsonl.index.new", "rename s.jsonl.index"]


def decoded_by(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is decoded of a session file from here on."""
    decoded: list[bytes] = []

    def spied(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
        def spy(data: bytes) -> object:
            decoded.append(data)
            return decode(data)

        return spy

    for module, decoder in (
        (framing, "_decode_head"),
        (framing, "_decode_base_head"),
        (framing, "_decode_envelope"),
        (index, "_decode_row"),
    ):
        monkeypatch.setattr(module, decoder, spied(getattr(module, decoder)))
    return decoded


async def test_no_line_that_the_index_is_of_is_decoded_and_every_byte_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = b'"%b"' % (MARK * 2_000)
    path = await make(tmp_path, 60, payload=payload)
    size = path.stat().st_size
    decoded = decoded_by(monkeypatch)
    files = CountedFiles()
    storage = await store_in(tmp_path, files).open("s")
    assert decoded == []
    beside = index_path(path).stat().st_size
    assert size + beside <= files.bytes_read <= size + 2 * beside + jsonl_file.CHUNK_BYTES + 1_000
    assert beside < size / 20
    assert storage.stats().entries == storage.stats().usage.rows == 60
    assert [each.payload for each in await storage.scan(limit=1)] == [payload]
    for number in range(60, 62):
        await storage.submit(some_writes(number))
    storage.kill()
    decoded.clear()
    storage = await store_in(tmp_path).open("s")
    assert len(decoded) == 4, "the two lines behind it, with a ledger row each"
    assert storage.stats().entries == 62
    await storage.close()


Step = tuple[int, int, int, int]
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30), st.integers(0, 3)), max_size=40)


def writes_of(step: Step, used: set[str]) -> list[Write]:
    """One commit; ids come in no order, and keys and kinds are few."""
    what, first, second, third = step
    name, key = f"{first:02}\n\u00e9\u2028", f"k{third}"
    payload = b'"%d"' % (second * 10 ** (third * 3))
    if what in (0, 1) and name not in used:
        parents = sorted(each for each in used if not each.startswith("u"))
        parent = parents[second % len(parents)] if parents and second % 4 else None
        used.add(name)
        return [InsertEntry(name, parent, f"kind{second}", payload)]
    if what == 2 and f"u{name}" not in used:
        used.add(f"u{name}")
        usage = Usage(input_tokens=second, cost_nanos=first * 10**17)
        return [InsertUsage(UsageRow(id=f"u{name}", kind="attempt", usage=usage)), SetValue(Address("v", key), payload)]
    if what == 3:
        return [AppendElement(Address(f"l{second % 2}", key), payload), AppendElement(Address("l", "all"), payload)]
    if what == 4:
        return [DeleteList(Address("l0", key)), DeleteValue(Address("v", key))]
    return [SetValue(Address("op.meta", key), META % first), SetValue(Address(f"v{second % 3}", name), payload)]


@settings(max_examples=settings().max_examples // 3)  # each is some ten openings
@given(STEPS, st.integers(0, 40), st.booleans(), st.booleans(), st.integers(0, 2))
async def test_a_session_is_the_same_with_its_index_and_without(
    steps: Sequence[Step], cut: int, cleaned: bool, at_once: bool, behind: int
) -> None:
    """Also what is written then is, byte for byte; and the index that is written is that of a file read by lines."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_rows, "LATE_MAX", 1)
        patch.setattr("agentlane.storage.segments._OTHER", 2)
        patch.setattr("agentlane.storage.columns.TEXTS", 4)
        patch.setattr("agentlane.storage.columns.KEYS", 3)
        folder, used = Path(name) / "a", set[str]()
        durability = "disk" if at_once and len(steps) < 8 else "process"
        store = store_in(folder, durability=durability)
        await store.create("s")
        for number, part in enumerate((steps[:cut], steps[cut:])):
            storage = await store.open("s")
            pending = []
            for step in part:
                pending.append(storage.submit(writes_of(step, used)))
                if not at_once:
                    await pending[-1]
            for each in pending:
                await each
            if cleaned and number == 0:
                await storage.compact()
            await storage.close()
        path = folder / "s.jsonl"
        kept = await usable(path)
        assert kept is not None and kept.head.size >= path.stat().st_size * 8 // 9
        assert await answer(folder, with_index=True) == await answer(folder, with_index=False)
        other = Path(name) / "b"
        shutil.copytree(folder, other)
        for each, index_min_bytes in ((folder, 0), (other, None)):
            storage = await store_in(each, index_min_bytes=index_min_bytes).open("s")
            for number in range(behind):
                await storage.submit([SetValue(Address("op.meta", f"new{number}"), META % 1)])
                await storage.submit([InsertEntry(f"new{number}", None, "kind", b"1")])
            storage.kill()
        assert path.read_bytes() == (other / "s.jsonl").read_bytes()
        assert await answer(folder, with_index=True) == await answer(folder, with_index=False)


async def test_whatever_is_wrong_with_the_index_the_session_opens_without_it(tmp_path: Path, whole: bool) -> None:
    path = await make(tmp_path, 3)
    expected = await answer(tmp_path, with_index=False)
    beside = index_path(path)
    good = beside.read_bytes()
    places = range(0, len(good), 3 if whole else 13)
    harmed = [good[:at] for at in places]
    harmed += [good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :] for at in places]
    harmed += [good + b"\0", good + good, good[1:], bytes(len(good)), b"\xff" * len(good)]
    for each in harmed:
        beside.write_bytes(each)
        assert await usable(path) is None
    for each in harmed[::29] + harmed[-5:]:
        beside.write_bytes(each)
        assert await answer(tmp_path, with_index=True) == expected
    beside.unlink()
    assert await answer(tmp_path, with_index=True) == expected
    for make_it in (beside.mkdir, lambda: os.mkfifo(beside), lambda: beside.symlink_to(path)):
        make_it()
        assert await answer(tmp_path, with_index=True) == expected
        storage = await store_in(tmp_path).open("s")
        await storage.close()
        if beside.is_dir():
            beside.rmdir()
        else:
            assert await usable(path) is not None, "what is no index was replaced by one"
            beside.unlink()
    beside.write_bytes(good)
    assert await usable(path) is not None and await answer(tmp_path, with_index=True) == expected


def changed(head: IndexHead, **fields: Any) -> IndexHead:
    return IndexHead(**{name: getattr(head, name) for name in head.__struct_fields__} | fields)


async def test_an_index_of_something_else_is_not_taken(tmp_path: Path) -> None:
    """Each is whole, and its columns are those of the session with another entry: taken, it would show."""
    path = await make(tmp_path, 6)
    kept = await usable(path)
    assert kept is not None
    wrong = kept.index
    wrong.set_value("app.wrong", "k", wrong.entry_places[0])
    files, expected = FileSystem(), await answer(tmp_path, with_index=False)
    size = path.stat().st_size
    heads = {
        "another session": {"session_id": "t"},
        "a newer version": {"version": jsonl_index.VERSION + 1},
        "an older version": {"version": jsonl_index.VERSION - 1},
        "another machine": {"layout": "big 4 8"},
        "who knows more": {"vocabulary": kept.head.vocabulary + 1},
        "a longer file": {"size": size + 1},
        "no file": {"size": 0},
        "a shorter file": {"size": size - 1},
        "another ending": {"ending": bytes(64)},
        "other bytes": {"digest": bytes(8)},
        "other bytes by one of the sums": {"digest": kept.head.digest[:4] + bytes(4)},
        "other bytes by the other": {"digest": bytes(4) + kept.head.digest[4:]},
    }
    for what, fields in heads.items():
        assert jsonl_index.write_index(files, path, changed(kept.head, **fields), wrong)
        assert await usable(path) is None, what
        assert await answer(tmp_path, with_index=True) == expected, what
    wrong.ledger_seqs.append(7)
    assert jsonl_index.write_index(files, path, kept.head, wrong)
    assert await usable(path) is None, "columns that do not fit"
    wrong.ledger_seqs.pop()
    assert jsonl_index.write_index(files, path, kept.head, wrong)
    assert await answer(tmp_path, with_index=True) != expected, "and so it is the index that is read"


async def test_an_index_of_who_knew_a_tag_that_is_not_known_here_hides_it_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await make(tmp_path, 3)
    new_tag = framing.seal(b'"c":[99,0,"s",1,0],"w":[["z","new"]],"p":[]}')
    path.write_bytes(path.read_bytes() + new_tag)
    with pytest.raises(UnsupportedFormat) as without:
        await store_in(tmp_path, index_min_bytes=None).open("s", read_only=True)
    kept = await usable(path)
    assert kept is not None
    kept.sums.add(new_tag)
    fields = {"size": kept.sums.size, "digest": kept.sums.digest, "ending": path.read_bytes()[-64:]}
    assert jsonl_index.write_index(FileSystem(), path, changed(kept.head, **fields), kept.index)
    await (await store_in(tmp_path).open("s", read_only=True)).close()  # as who wrote it opens it
    before = jsonl_index.vocabulary()
    known = [each for each in framing.RECORDS if each is not framing.MoveFrame]
    monkeypatch.setattr(jsonl_index, "RECORDS", known)
    assert jsonl_index.vocabulary() != before
    with pytest.raises(UnsupportedFormat) as with_index:
        await store_in(tmp_path).open("s", read_only=True)
    assert str(with_index.value) == str(without.value)


async def test_what_an_index_is_like_has_not_changed_without_its_version(tmp_path: Path) -> None:
    """Who changes what is written, or what it means, gives it another version: then indexes of before are not taken."""
    path = await make(tmp_path, 20)
    if jsonl_index.layout() == "little 4 8":
        assert (jsonl_index.VERSION, zlib.crc32(index_path(path).read_bytes())) == (1, 3715798072)


async def test_an_index_of_the_file_as_it_was_before_a_cleanup_is_not_taken(tmp_path: Path) -> None:
    path = await make(tmp_path, 30)
    old = index_path(path).read_bytes()
    storage = await store_in(tmp_path).open("s")
    await storage.compact()
    assert index_path(path).read_bytes() != old, "a cleanup writes one"
    new = await usable(path)
    assert new is not None and new.head.size == path.stat().st_size
    storage.kill()
    index_path(path).write_bytes(old)
    assert await usable(path) is None
    assert await answer(tmp_path, with_index=True) == await answer(tmp_path, with_index=False)


async def test_damage_to_the_file_is_told_as_without_an_index(tmp_path: Path, whole: bool) -> None:
    path = await make(tmp_path, 5)
    storage = await store_in(tmp_path, index_min_bytes=None).open("s")
    await storage.submit(some_writes(5))
    await storage.submit(some_writes(6))
    storage.kill()
    good, beside = path.read_bytes(), index_path(path).read_bytes()
    kept = await usable(path)
    assert kept is not None and kept.head.size < len(good)
    lines = good.split(b"\n")
    places = range(0, len(good), 7 if whole else 53)
    harmed = [good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :] for at in places]
    harmed += [good[:at] + good[at + 1 :] for at in places] + [good[:at] + b"\0" + good[at:] for at in places]
    harmed += [good[:at] for at in places]
    harmed += [b"\n".join([*lines[:at], *lines[at + 1 :]]) for at in range(len(lines) - 1)]
    harmed += [b"\n".join([*lines[:at], lines[at], *lines[at:]]) for at in range(len(lines) - 1)]
    harmed += [good + b"{", good + lines[1] + b"\n", good.replace(b"\n", b"\r\n"), b""]
    errors = set()
    for each in harmed:
        path.write_bytes(each)
        without = await answer(tmp_path, with_index=False)
        assert await answer(tmp_path, with_index=True) == without
        errors.add(without.split(":")[0] if isinstance(without, str) else "opened")
        assert index_path(path).read_bytes() == beside
    assert errors == {"CorruptSession", "UnsupportedFormat", "opened"}


async def test_bytes_that_were_damaged_while_the_session_was_open_are_not_vouched_for(tmp_path: Path) -> None:
    """The checksum is of what was written, and not of what is found there later."""
    store = store_in(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    for number in range(5):
        await storage.submit(some_writes(number, b'"%b"' % MARK))
    path = tmp_path / "s.jsonl"
    with path.open("r+b") as file:
        at = path.read_bytes().index(MARK)
        file.seek(at)
        file.write(b"A")
    await storage.close()
    assert await usable(path) is None
    with pytest.raises(CorruptSession, match=r"line 2 .*checksum"):
        await store_in(tmp_path).open("s", read_only=True)


async def test_when_an_index_is_written(tmp_path: Path) -> None:
    files = CountedFiles()

    def changes() -> list[str]:
        found, files.changes = files.changes, []
        return found

    least = 20_000
    store = store_in(tmp_path, files, index_min_bytes=least)
    path = tmp_path / "s.jsonl"
    await store.create("s")
    changes()

    async def grow(storage: SessionStorage, size: int, begin: int) -> int:
        while path.stat().st_size < size:
            await storage.submit(some_writes(begin, b'"%b"' % (b"x" * 100)))
            begin += 1
        return begin

    storage = await store.open("s")
    number = await grow(storage, least // 2, 0)
    await storage.close()
    assert changes() == LEFT_OVER, "of a small file there is none"
    storage = await store.open("s")
    number = await grow(storage, least, number)
    assert changes() == WRITTEN, "when it is large enough"
    number = await grow(storage, 2 * least - 1_000, number)
    assert changes() == []
    number = await grow(storage, 2 * least + 2_000, number)
    assert changes() == WRITTEN, "when it has doubled"
    storage.kill()
    assert changes() == []
    storage = await store.open("s", read_only=True)
    await storage.close()
    assert changes() == [], "by no reader"
    for _ in range(2):
        storage = await store.open("s")
        await storage.close()
        assert changes() == LEFT_OVER, "not again, of the same or nearly so"
    storage = await store.open("s")
    number = await grow(storage, path.stat().st_size * 9 // 8 + 1_000, number)
    assert changes() == []
    await storage.close()
    assert changes() == WRITTEN, "when it is closed, and has grown by an eighth"
    storage = await store_in(tmp_path, files, index_min_bytes=None).open("s")
    await grow(storage, 5 * least, number)
    await storage.close()
    assert changes() == [], "nor where none is wanted"
    storage = await store_in(tmp_path, files, index_min_bytes=6 * least).open("s")
    await storage.compact()
    assert "rename s.jsonl.index" not in changes()
    await storage.close()
    assert await usable(path) is None
    for wrong in (-1,):
        with pytest.raises(InvalidDefinition, match="index_min_bytes=-1"):
            store_in(tmp_path, index_min_bytes=wrong)


async def test_commits_that_share_a_sync_are_in_one_index(tmp_path: Path) -> None:
    """It waits for the moment when all that is written is published."""
    store = store_in(tmp_path, durability="disk")
    await store.create("s")
    storage = await store.open("s")
    for batch in range(3):
        pending = [storage.submit(some_writes(number)) for number in range(batch * 20, batch * 20 + 20)]
        for each in pending:
            await each
    path = tmp_path / "s.jsonl"
    kept = await usable(path)
    assert kept is not None and path.stat().st_size <= 2 * kept.head.size
    assert kept.head.last_seq == kept.index.last_seq and kept.head.stats.entries % 20 == 0
    storage.kill()
    assert await answer(tmp_path, with_index=True) == await answer(tmp_path, with_index=False)


@pytest.mark.parametrize("tail", [b'{"k":"00', b'{"k":"00000000","c"}\n', b"\0" * 40, b"\n\n{"])
async def test_a_tail_that_was_cut_off_is_not_in_the_index(tail: bytes, tmp_path: Path) -> None:
    for index_min_bytes in (None, 0):
        folder = tmp_path / f"{index_min_bytes}"
        path = await make(folder, 4)
        storage = await store_in(folder, index_min_bytes=None).open("s")
        await storage.submit(some_writes(4))
        storage.kill()
        with path.open("ab") as file:
            file.write(tail)
        if index_min_bytes is None:
            index_path(path).unlink()
        assert await answer(folder, with_index=True) == await answer(folder, with_index=False)
        storage = await store_in(folder).open("s")
        await storage.close()
        kept = await usable(path)
        assert kept is not None and path.read_bytes()[kept.head.size :] == tail
        storage = await store_in(folder).open("s")
        assert isinstance(storage, JsonlSession) and len(storage.findings) == 1
        await storage.submit(some_writes(5))
        storage._keeper._size = 0
        await storage.close()
        kept = await usable(path)
        assert kept is not None and kept.head.size == path.stat().st_size
        assert await answer(folder, with_index=True) == await answer(folder, with_index=False)


@pytest.mark.parametrize("durability", ["process", "disk"])
async def test_commits_that_come_while_a_file_is_cleaned_up_are_in_the_index(durability: str, tmp_path: Path) -> None:
    store = store_in(tmp_path, durability=durability)
    await store.create("s")
    storage = await store.open("s")
    for number in range(8):
        await storage.submit(some_writes(number))
    cleanup = asyncio.ensure_future(storage.compact())
    while not cleanup.done():
        await storage.submit([SetValue(Address("app.v", "k"), b"1")])
        await asyncio.sleep(0)
    await cleanup
    await storage.submit(some_writes(8))
    assert isinstance(storage, JsonlSession)
    storage._keeper._size = 0
    await storage.close()
    kept, path = await usable(tmp_path / "s.jsonl"), tmp_path / "s.jsonl"
    assert kept is not None and kept.head.size == path.stat().st_size
    assert await answer(tmp_path, with_index=True) == await answer(tmp_path, with_index=False)


async def test_a_cleanup_that_leaves_a_small_file_removes_the_index(tmp_path: Path) -> None:
    store = store_in(tmp_path, index_min_bytes=50_000)
    await store.create("s")
    storage = await store.open("s")
    for number in range(100):
        await storage.submit([SetValue(Address("v", "k"), b'"%b"' % (b"%d" % number * 500))])
    await storage.close()
    path = tmp_path / "s.jsonl"
    assert await usable(path) is not None
    storage = await store.open("s")
    await storage.compact()
    assert path.stat().st_size < 50_000 and not index_path(path).exists()
    await storage.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s.jsonl", "s.jsonl.lock"]


async def test_who_has_lost_the_session_writes_no_index(tmp_path: Path) -> None:
    for lose in ("nothing", "lock", "file", "fault"):
        folder = tmp_path / lose
        store = store_in(folder)
        await store.create("s")
        storage = await store.open("s")
        for number in range(3):
            await storage.submit(some_writes(number))
        path = folder / "s.jsonl"
        index_path(path).unlink()
        assert isinstance(storage, JsonlSession)
        storage._keeper.replaced()
        if lose == "lock":
            (folder / "s.jsonl.lock").unlink()
            (folder / "s.jsonl.lock").touch()
        elif lose == "file":
            shutil.copy(path, folder / "copy")
            os.rename(folder / "copy", path)
        elif lose == "fault":
            with path.open("ab") as file:
                file.write(b"{")
            with pytest.raises(AgentLaneError):
                await storage.submit(some_writes(3))
        await storage.close()
        assert index_path(path).exists() == (lose == "nothing"), lose


class Death(BaseException):
    """The process is killed."""


class DyingFiles(FileSystem):
    """The ``nth`` call, counted from when it is set, does nothing or all it should, or fails; after a death all do."""

    CALLS = ("open", "close", "write", "pread", "status", "status_at", "rename", "unlink")

    def __init__(self) -> None:
        self.nth = 0
        self.seen: list[str] = []
        self.how: str | int = ""
        self.for_good = False
        self.dead = False
        for name in self.CALLS:
            setattr(self, name, self._met(name, getattr(self, name)))

    def plan(self, nth: int, how: str | int, *, for_good: bool = False) -> None:
        self.nth, self.how, self.for_good, self.seen = nth, how, for_good, []

    def _met(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def met(*arguments: Any) -> Any:
            self.seen.append(name)
            now = self.nth and (len(self.seen) == self.nth or (self.for_good and len(self.seen) > self.nth))
            if self.dead or (now and self.how == "before"):
                self.dead = True
                raise Death
            if now and self.how == "half" and name == "write":
                call(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2])
            elif not now or isinstance(self.how, str) or name == "close":
                found = call(*arguments)
            if now and isinstance(self.how, int):
                raise OSError(self.how, os.strerror(self.how))
            if now:
                self.dead = True
                raise Death
            return found

        return met


async def grown(folder: Path, files: FileSystem) -> SessionStorage:
    """An open session that has an index of less than it holds."""
    path = await make(folder, 3)
    assert index_path(path).exists()
    storage = await store_in(folder, files).open("s")
    for number in range(3, 9):
        assert isinstance(storage, JsonlSession)
        storage._keeper._next = float("inf")
        await storage.submit(some_writes(number))
    return storage


async def test_killed_at_any_call_of_a_close_nothing_is_lost(tmp_path: Path) -> None:
    expected, calls, nth = None, 0, 0
    while nth <= calls:
        for how in ("before", "half", "after"):
            folder = tmp_path / f"{nth}-{how}"
            files = DyingFiles()
            storage = await grown(folder, files)
            files.plan(nth, how)
            try:
                await storage.close()
                assert nth == 0
                calls = len(files.seen)
                assert {"open", "write", "rename", "close", "pread"} <= set(files.seen)
            except Death:
                assert nth
            path = folder / "s.jsonl"
            found = await answer(folder, with_index=False)
            expected = expected or found
            assert found == await answer(folder, with_index=True) == expected, (nth, how)
            storage = await store_in(folder).open("s")
            await storage.close()
            assert await usable(path) is not None, (nth, how)
            names = sorted(each.name for each in folder.iterdir())
            assert names == ["s.jsonl", "s.jsonl.index", "s.jsonl.lock"], (nth, how)
        nth += 1
    assert calls > 5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
async def test_whatever_call_fails_a_close_does_not(code: int, tmp_path: Path) -> None:
    calls, nth = 0, 0
    while nth <= calls:
        for for_good in (False, True):
            folder = tmp_path / f"{nth}-{for_good}"
            files = DyingFiles()
            storage = await grown(folder, files)
            files.plan(nth, code, for_good=for_good)
            try:
                await storage.close()
            except OSError:
                assert files.seen[nth - 1 :] and "close" in files.seen[nth - 1 :], "of the session file itself"
            calls = calls or len(files.seen)
            files.plan(0, "")
            if not for_good:
                assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == [], (nth, files.seen)
            assert await answer(folder, with_index=True) == await answer(folder, with_index=False)
            storage = await store_in(folder).open("s")
            await storage.close()
            assert await usable(folder / "s.jsonl") is not None
        nth += 1
    assert calls > 5


async def test_an_index_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    path = await make(tmp_path, 6)
    expected = await answer(tmp_path, with_index=True)

    class Failing(FileSystem):
        def __init__(self, nth: int) -> None:
            self.nth, self.index, self.seen = nth, -1, 0

        def _meet(self, descriptor: int) -> None:
            if descriptor == self.index:
                self.seen += 1
                if self.seen == self.nth:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))

        def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
            found = super().open(path, flags, mode)
            if path.name.endswith(".index"):
                self.index = found
                self._meet(found)
            return found

        def close(self, descriptor: int) -> None:
            if descriptor == self.index:
                self.index = -1
            super().close(descriptor)

        def pread(self, descriptor: int, size: int, offset: int) -> bytes:
            self._meet(descriptor)
            return super().pread(descriptor, size, offset)

        def status(self, descriptor: int) -> os.stat_result:
            self._meet(descriptor)
            return super().status(descriptor)

    nth = 0
    while True:
        nth += 1
        files = Failing(nth)
        storage = await store_in(tmp_path, files).open("s", read_only=True)
        assert await seen(storage) == expected
        await storage.close()
        if files.seen < nth:
            break
    assert nth > 20 and path.exists()


async def test_a_store_without_room_or_rights_closes_as_ever(tmp_path: Path) -> None:
    storage = await grown(tmp_path, FileSystem())
    (tmp_path / ".s.jsonl.index.new").mkdir()  # whoever made this: it is in the way
    await storage.close()
    assert await answer(tmp_path, with_index=True) == await answer(tmp_path, with_index=False)
    (tmp_path / ".s.jsonl.index.new").rmdir()


async def test_what_does_not_read_lines_takes_no_notice_of_an_index(tmp_path: Path) -> None:
    path = await make(tmp_path, 6)
    store = store_in(tmp_path)
    assert [each.id for each in await store.list()] == ["s"]
    found = await store.verify("s"), await store.open_operations()
    assert not any("index" in each.place for each in found[0].findings)
    index_path(path).write_bytes(b"nothing")
    assert (await store.verify("s"), await store.open_operations()) == found
    folder = tmp_path / "other"
    folder.mkdir()
    for each in tmp_path.glob("s.*"):
        shutil.copy(each, folder)
    await store_in(folder).open("s", read_only=True)
    left = tmp_path / ".s.jsonl.index.new"
    left.write_bytes(b"half")
    await (await store_in(tmp_path, index_min_bytes=1 << 20).open("s")).close()
    assert not left.exists(), "the next owner takes it away, of whatever size the file is"
    left.write_bytes(b"half")
    index_path(path).unlink()
    index_path(path).mkdir()  # not ours: it stays, and is in nobody's way
    await store.delete("s")
    index_path(path).rmdir()
    assert [each.name for each in tmp_path.iterdir()] == ["other"]


async def test_an_index_takes_no_more_memory_than_lines(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    parent = None
    for number in range(1_500):
        each = f"01900000-0000-7000-8000-{number:012x}"
        await storage.submit([InsertEntry(each, parent, "message", b"x" * 200), SetValue(Address("t", "main"), b"1")])
        parent = each
    await storage.close()
    kept = []
    for index_min_bytes in (None, 0):
        store = store_in(tmp_path, index_min_bytes=index_min_bytes)
        await (await store.open("s", read_only=True)).close()  # what is made once is there
        tracemalloc.start()
        try:
            storage = await store.open("s", read_only=True)
            kept.append(tracemalloc.get_traced_memory())
        finally:
            tracemalloc.stop()
        await storage.close()
    (lines, _), (by_index, peak) = kept
    assert lines > 1_500 * 100
    assert by_index < lines * 1.05
    assert peak < by_index + 3 * jsonl_index.SUM_BYTES


@given(st.lists(st.binary(max_size=40)))
def test_the_checksum_is_two_sums_of_all_bytes(parts: list[bytes]) -> None:
    sums = Sums(parts[0] if parts else b"")
    for each in parts[1:]:
        before, copied = sums.digest, sums.copy()
        sums.add(memoryview(each))
        assert copied.digest == before
        copied.add_all([each[:3], each[3:]])
        assert (copied.digest, copied.size) == (sums.digest, sums.size)
    data = b"".join(parts)
    assert sums.digest == zlib.crc32(data).to_bytes(4, "big") + zlib.adler32(data).to_bytes(4, "big")
    assert sums.size == len(data)
