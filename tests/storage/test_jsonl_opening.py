"""Claim: opening a JSONL session reads its file once, decodes no payload, and keeps some 130 bytes an entry."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import CorruptSession
from agentlane.storage import framing, id_rows, index, jsonl_file
from agentlane.storage.contract import SessionStorage
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import seal
from agentlane.storage.id_rows import USAGE, IdRows
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.segments import NO_ROW
from agentlane.testing.clock import ManualClock

MARK = b"a payload"
TIP = Address("branch.tip", "main")


class CountedFiles(FileSystem):
    """Counts what is read."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        found = super().pread(descriptor, size, offset)
        self.bytes_read += len(found)
        return found


def entry_id(number: int) -> str:
    """Of 36 characters, as ids are, and rising."""
    return f"01900000-0000-7000-8000-{number:012x}"


async def make(folder: Path, ids: list[str], payload: bytes = b"1", *, usage: bool = False) -> JsonlStore:
    """A session ``s`` of one commit an entry, each setting the tip too, and ``base``, the same as a base."""
    store = JsonlStore(folder, durability="process", compact_share=None)
    await store.create("s")
    storage = await store.open("s")
    parent = None
    for number, each in enumerate(ids):
        writes: list[Write] = [InsertEntry(each, parent, "message", payload), SetValue(TIP, b'"%b"' % each.encode())]
        if usage:
            row = UsageRow(id=f"{each}-used", kind="attempt", usage=Usage(input_tokens=number, output_tokens=1))
            writes.append(InsertUsage(row))
        await storage.submit(writes)
        parent = each
    snapshot = await storage.snapshot()
    await store.load(snapshot.pages(), last_seq=snapshot.last_seq, session_id="base")
    await snapshot.close()
    await storage.close()
    return store


@pytest.mark.parametrize("name", ["s", "base"])
async def test_no_payload_is_decoded_and_nothing_is_read_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = b'"%b"' % (MARK * 2_000)
    await make(tmp_path, [entry_id(each) for each in range(60)], payload, usage=True)
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
    files = CountedFiles()
    storage = await JsonlStore(tmp_path, files=files).open(name, read_only=True)
    size = (tmp_path / f"{name}.jsonl").stat().st_size
    assert size > 60 * len(payload)
    assert files.bytes_read <= size + jsonl_file.CHUNK_BYTES  # the header is read by itself
    assert storage.stats().entries == storage.stats().usage.rows == 60
    assert not any(MARK in each for each in decoded)
    assert 60 * 60 < sum(map(len, decoded)) < 60 * 400  # heads and ledger rows, and there is something to count
    assert [each.payload for each in await storage.scan(limit=1)] == [payload]
    await storage.close()


def late(count: int) -> list[str]:
    """Ids of eight lanes that each reserve one, and use it some time later."""
    numbers = list(range(count))
    for start in range(0, count, 8):
        part = numbers[start : start + 8]
        random.Random(start).shuffle(part)
        numbers[start : start + 8] = part
    return [entry_id(each) for each in numbers]


def in_order(count: int) -> list[str]:
    return [entry_id(each) for each in range(count)]


def in_no_order(count: int) -> list[str]:
    ids = in_order(count)
    random.Random(1).shuffle(ids)
    return ids


@pytest.mark.parametrize(
    ("name", "ids_of", "most"),
    [("s", in_order, 150), ("base", in_order, 135), ("s", late, 165), ("s", in_no_order, 200)],
)
async def test_an_entry_takes_little_memory(
    name: str, ids_of: Callable[[int], list[str]], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_rows, "LATE_MAX", 64)
    count = 3_000
    store = await make(tmp_path, ids_of(count), b"x" * 200)
    await (await store.open(name, read_only=True)).close()  # what is made once is there
    tracemalloc.start()
    try:
        storage: SessionStorage = await store.open(name, read_only=True)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert storage.stats().entries == count
    assert 100 * count < kept < most * count
    assert peak < kept + 6 * jsonl_file.CHUNK_BYTES
    await store.close()


async def test_ids_that_come_late_or_in_no_order_are_found_after_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_rows, "LATE_MAX", 4)
    ids = in_no_order(200)
    store = await make(tmp_path, ids, usage=True)
    for name in ("s", "base"):
        storage = await store.open(name)
        found = await storage.entries([*ids, f"{ids[0]}-used", "nobody"])
        assert [None if each is None else each.id for each in found] == [*ids, None, None]
        assert [each.id for each in await storage.path(ids[-1], newest_first=False)] == ids
        assert [each.row.id for each in await storage.usage()] == [f"{each}-used" for each in ids]
        assert await storage.submit([InsertEntry("0", ids[3], "message", b"1")])
        await storage.close()


async def test_times_and_parents_come_back_whatever_their_order(tmp_path: Path) -> None:
    clock = ManualClock()
    store = JsonlStore(tmp_path, durability="process", compact_share=None, clock=clock)
    await store.create("s")
    storage = await store.open("s")
    parents: list[str | None] = [None, None]
    expected = []
    for number in range(40):
        clock.advance(1 + number % 3 if number % 4 else 0)
        each, lane = entry_id(number), number * 5 // 3 % 2
        row = UsageRow(id=f"{each}-used", kind="attempt", usage=Usage())
        commit = await storage.submit([InsertEntry(each, parents[lane], "message", b"1"), InsertUsage(row)])
        expected.append((each, parents[lane], commit.first_seq, commit.at))
        parents[lane] = each
    snapshot = await storage.snapshot()
    await store.load(snapshot.pages(), last_seq=snapshot.last_seq, session_id="base")
    await snapshot.close()
    await storage.close()
    assert len({at for *_, at in expected}) == 31
    for name in ("s", "base"):
        storage = await store.open(name)
        assert [(each.id, each.parent_id, each.seq, each.at) for each in await storage.scan()] == expected
        found = [(each.row.id, each.seq, each.at) for each in await storage.usage()]
        assert found == [(f"{each}-used", seq + 1, at) for each, _, seq, at in expected]
        await storage.close()


@pytest.mark.parametrize("again", ["entry", "usage"])
async def test_an_id_that_comes_again_is_damage_however_far_behind(
    again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_rows, "LATE_MAX", 4)
    ids = in_no_order(50)
    await make(tmp_path, ids, usage=True)
    path = tmp_path / "s.jsonl"
    for used in (*ids[:10], f"{ids[20]}-used"):
        whole = path.read_bytes()
        if again == "entry":
            frames, payload = b'["e","%b","message",1,null]' % used.encode(), b"1"
        else:
            payload = b'{"id":"%b","kind":"attempt","usage":{}}' % used.encode()
            frames = b'["u",%d]' % len(payload)
        path.write_bytes(whole + seal(b'"c":[151,0,"s",1,0],"w":[%b],"p":[%b]}' % (frames, payload)))
        with pytest.raises(CorruptSession, match=f"{again} id '{used}' comes again"):
            await JsonlStore(tmp_path).open("s", read_only=True)
        path.write_bytes(whole)


Step = tuple[int, bool]


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=120), st.integers(1, 8))
def test_rows_of_ids_are_those_of_a_dictionary(steps: list[Step], late_max: int) -> None:
    """Ids in any order, of entries and usage rows, some of them twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_rows, "LATE_MAX", late_max)
        rows, model, entries = IdRows(), dict[str, int](), list[str]()
        for number, is_usage in steps:
            each = f"{number:02}"
            fresh = each not in model
            if is_usage:
                assert rows.add_usage(each) == fresh
                model.setdefault(each, USAGE)
            else:
                assert rows.add(each) == (len(entries) if fresh else NO_ROW)
                if fresh:
                    model[each] = len(entries)
                    entries.append(each)
            assert rows.ids == entries and len(rows) == len(model)
        for number in range(-1, 62):
            each = f"{number:02}"
            assert (each in rows) == (each in model)
            assert rows.get(each) == model.get(each, NO_ROW)
        assert rows.get(None) == rows.get(7) == NO_ROW
        with pytest.raises(KeyError):
            rows["nobody"]


async def test_what_is_open_and_what_is_there_is_told_without_reading_the_files(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path, durability="process", compact_share=None)
    meta = b'{"lane":"main","started_at":1}'
    big = b'"%b"' % (b"x" * 100_000)
    for number in range(12):
        await store.create(f"s{number}")
        storage = await store.open(f"s{number}")
        for each in range(20):
            await storage.submit([SetValue(Address("app.v", "k"), big)])
            if each == 2:
                await storage.submit([SetValue(Address("op.meta", f"op{number}"), meta)])
        await storage.submit([SetValue(Address("app.v", "k"), b"1")])
        await storage.close()
    sizes = sum(each.stat().st_size for each in tmp_path.glob("*.jsonl"))
    files = CountedFiles()
    reader = JsonlStore(tmp_path, files=files)
    assert [each.operation_id for each in await reader.open_operations()] == sorted(f"op{each}" for each in range(12))
    of_operations, files.bytes_read = files.bytes_read, 0
    assert len(await reader.list()) == 12
    each_at_most = jsonl_file.CHUNK_BYTES + 2 * jsonl_file.TAIL_BYTES
    assert max(of_operations, files.bytes_read) <= 12 * each_at_most < sizes / 4
