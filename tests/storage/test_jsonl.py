"""Claim: a JSONL file holds exactly the commits that were reported, whatever a crash, a disk or somebody else does."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, DeleteValue, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import (
    AgentLaneError,
    CorruptSession,
    InvalidName,
    InvalidWrite,
    OwnershipLost,
    PayloadTooLarge,
    SessionClosed,
    SessionFaulted,
    SessionOwned,
    UnknownSession,
    UnsupportedFormat,
    WrongLoop,
)
from agentlane.storage import framing
from agentlane.storage.contract import Durability, Pending, SessionStorage
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import seal
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.lock import OwnerLock
from agentlane.storage.open import session_of
from agentlane.testing.clock import CountingIds, ManualClock
from tests.storage.disk import TestDisk

DURABILITIES: list[Durability] = ["disk", "process"]
AT = Address("app.test", "value")
LIST = Address("app.test", "list")


def make_store(folder: Path, durability: Durability = "process", disk: TestDisk | None = None) -> JsonlStore:
    return JsonlStore(folder, durability=durability, clock=ManualClock(), ids=CountingIds(), files=disk)


def put(number: int) -> SetValue:
    return SetValue(AT, b'{"n":%d}' % number)


def entry(number: int) -> InsertEntry:
    return InsertEntry(f"e{number}", f"e{number - 1}" if number else None, "message", b'{"entry":%d}' % number)


def usage(number: int) -> InsertUsage:
    row = UsageRow(id=f"u{number}", kind="attempt", usage=Usage(input_tokens=3, output_tokens=number))
    return InsertUsage(row)


def commit(number: int) -> list[Write]:
    return [entry(number), usage(number), put(number), AppendElement(LIST, b"%d" % number)]


async def fill(folder: Path, commits: int, durability: Durability = "process") -> Path:
    """A session `s` with so many commits, closed; its file."""
    store = make_store(folder, durability)
    await store.create("s")
    storage = await store.open("s")
    for number in range(commits):
        await storage.submit(commit(number))
    await store.close()
    return folder / "s.jsonl"


async def state(storage: SessionStorage) -> tuple[object, ...]:
    """Everything the session answers."""
    return (
        await storage.scan(),
        await storage.usage(),
        await storage.values("app.test"),
        await storage.elements(LIST),
        storage.stats(),
    )


async def numbers(storage: SessionStorage) -> list[int]:
    """The numbers of the commits that are there, each whole."""
    found = [json.loads(row.payload)["entry"] for row in await storage.scan()]
    assert [row.row.usage.output_tokens for row in await storage.usage()] == found
    assert [int(element.payload) for element in await storage.elements(LIST)] == found
    assert storage.stats().entries == storage.stats().usage.rows == len(found)
    value = await storage.value(AT)
    assert (json.loads(value)["n"] if value else None) == (found[-1] if found else None)
    return found


def reseal(line: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    """A line with something else in it and a checksum that fits."""
    value = json.loads(line)
    del value["k"]
    change(value)
    return seal(json.dumps(value, separators=(",", ":")).encode()[1:])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Torn tails.


async def test_a_record_torn_at_any_byte_is_cut_off_before_the_first_append(tmp_path: Path) -> None:
    source = await fill(tmp_path / "source", 3)
    whole = source.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        path = folder / "s.jsonl"
        path.write_bytes(whole[:cut])
        store = make_store(folder)
        storage = await store.open("s")
        assert path.read_bytes() == whole[:cut], "opening wrote something"
        assert await numbers(storage) == [0, 1]
        assert len(storage.findings) == 1 and f"byte {last}" in storage.findings[0]

        done = await storage.submit(commit(2))

        assert done.first_seq == 9
        assert (folder / "s.jsonl.torn-1").read_bytes() == whole[last:cut]
        assert "torn-1" in storage.findings[1]
        await storage.close()
        again = await store.open("s")
        assert await numbers(again) == [0, 1, 2]
        assert not again.findings
        await store.close()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_tail_is_kept_aside_for_the_owner_alone_and_reported(
    tmp_path: Path, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    path = await fill(tmp_path, 2, durability)
    (tmp_path / "s.jsonl.torn-1").write_bytes(b"an older one")
    with path.open("ab") as file:
        file.write(b"\0" * 3_000_000)
    store = make_store(tmp_path, durability)
    storage = await store.open("s")
    assert await numbers(storage) == [0, 1]

    await storage.submit(commit(2))

    aside = tmp_path / "s.jsonl.torn-2"
    assert aside.read_bytes() == b"\0" * 3_000_000
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    assert (tmp_path / "s.jsonl.torn-1").read_bytes() == b"an older one"
    assert [record.name for record in caplog.records] == ["agentlane"]
    assert str(aside) in caplog.text
    assert await numbers(storage) == [0, 1, 2]
    await store.close()


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 70_000,
        b"\0\n\0\n",
        b'{"k":"',
        b"\n",
        b'{"k":"00000000","c":[]}\n',
        b"nonsense\n" * 3,
        b'{"k":"' + b"x" * 900_000,
    ],
    ids=["nul", "nul lines", "start", "empty line", "checksum", "text", "long"],
)
async def test_what_is_no_record_at_the_end_is_a_torn_tail(tmp_path: Path, tail: bytes) -> None:
    path = await fill(tmp_path, 2)
    with path.open("ab") as file:
        file.write(tail)
    store = make_store(tmp_path)
    assert await store.open_operations() == []
    storage = await store.open("s")

    assert await numbers(storage) == [0, 1]
    await storage.submit(commit(2))
    await storage.close()
    assert (tmp_path / "s.jsonl.torn-1").read_bytes() == tail
    storage = await store.open("s")
    assert await numbers(storage) == [0, 1, 2]
    await store.close()


async def test_reading_alone_leaves_a_tail_where_it_is(tmp_path: Path) -> None:
    path = await fill(tmp_path, 2)
    with path.open("ab") as file:
        file.write(b'{"k":"')
    before = path.read_bytes()
    store = make_store(tmp_path)
    storage = await store.open("s", read_only=True)

    assert await numbers(storage) == [0, 1]
    assert "passed over" in storage.findings[0]
    await store.close()
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["s.jsonl", "s.jsonl.lock"]


# Corruption.


async def test_a_flipped_byte_is_detected_wherever_it_is(tmp_path: Path, whole: bool) -> None:
    path = await fill(tmp_path, 3)
    good = path.read_bytes()
    last = good.rindex(b"\n", 0, -1) + 1
    header_end = good.index(b"\n") + 1
    store = make_store(tmp_path)
    for place in range(0, len(good), 1 if whole else 3):
        for bit in range(8) if whole else (0, 5, 7):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            path.write_bytes(bad)
            if place >= last - 1:  # nothing good after it: a torn tail, of two records if they are one line now
                storage = await store.open("s")
                assert await numbers(storage) == ([0, 1] if place >= last else [0]), (place, bit)
                assert storage.findings
                await storage.close()
            else:
                with pytest.raises((CorruptSession, UnsupportedFormat)) as refused:
                    await store.open("s")
                if place >= header_end:
                    assert refused.value.details["line"] == good.count(b"\n", 0, place) + 1, (place, bit)
            assert path.read_bytes() == bad
    await store.close()


async def test_corruption_names_file_line_offset_and_reason_and_changes_nothing(tmp_path: Path) -> None:
    path = await fill(tmp_path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"entry":1', b'"entry":7')
    path.write_bytes(b"".join(lines))
    before = path.read_bytes()
    store = make_store(tmp_path)

    for read_only in (False, True):
        with pytest.raises(CorruptSession, match="checksum does not match, and line 4 after it is whole") as refused:
            await store.open("s", read_only=read_only)
        details = refused.value.details
        assert (details["line"], details["offset"]) == (3, len(lines[0]) + len(lines[1]))
        assert details["path"] == str(path)
    await store.close()
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["s.jsonl", "s.jsonl.lock"]
    OwnerLock.acquire(tmp_path / "s.jsonl.lock", error=SessionOwned, what="s").release()


def synced_of(line: bytes) -> int | None:
    envelope = json.loads(line)["c"]
    return envelope[5] if len(envelope) > 5 else None


async def group(folder: Path, sizes: list[int]) -> Path:
    """A file written with `disk`, each group of commits with one sync."""
    store = make_store(folder, "disk")
    await store.create("s")
    storage = await store.open("s")
    number = 0
    for size in sizes:
        pending = [storage.submit(commit(number + n)) for n in range(size)]
        number += size
        for each in pending:
            await each
    await store.close()
    return folder / "s.jsonl"


async def test_lines_name_what_was_synced_when_they_were_written(tmp_path: Path) -> None:
    path = await group(tmp_path, [1, 3, 2])
    lines = path.read_bytes().splitlines(keepends=True)
    ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]

    assert [synced_of(line) for line in lines[1:]] == [0, ends[1], ends[1], ends[1], ends[4], ends[4]]


async def test_owners_that_make_one_commit_each_leave_no_history_that_is_not_known_to_be_synced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.jsonl"
    await make_store(tmp_path, "disk").create("s")
    for number in range(6):
        store = make_store(tmp_path, "disk" if number != 2 else "process")
        await (await store.open("s")).submit(commit(number))
        await store.close()
    lines = path.read_bytes().splitlines(keepends=True)
    ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]
    assert [synced_of(line) for line in lines[1:]] == [0, ends[1], None, ends[3], ends[4], ends[5]]
    store = make_store(tmp_path, "disk")

    for number in range(1, 6):
        bad = lines[number][:20] + b"?" + lines[number][21:]
        path.write_bytes(b"".join([*lines[:number], bad, *lines[number + 1 :]]))
        with pytest.raises(CorruptSession, match=f"line {number + 1} "):
            await store.open("s")


async def test_good_lines_that_were_never_acknowledged_are_part_of_the_tail(tmp_path: Path) -> None:
    path = await group(tmp_path, [1, 3])
    lines = path.read_bytes().splitlines(keepends=True)
    # The first of the last group is bad, and the two after it name no synced offset beyond it.
    path.write_bytes(b"".join([*lines[:2], b"\0" * (len(lines[2]) - 1) + b"\n", *lines[3:]]))
    store = make_store(tmp_path, "disk")
    storage = await store.open("s")

    assert await numbers(storage) == [0]
    await storage.submit(commit(1))
    await storage.close()
    assert (tmp_path / "s.jsonl.torn-1").read_bytes().endswith(lines[3] + lines[4])
    assert await numbers(await store.open("s")) == [0, 1]
    await store.close()


async def test_a_bad_record_that_a_later_one_knows_to_be_synced_is_corruption(tmp_path: Path) -> None:
    path = await group(tmp_path, [1, 3, 1])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0" * (len(lines[2]) - 1) + b"\n", *lines[3:]]))

    with pytest.raises(CorruptSession, match="and line 6 after it is whole"):
        await make_store(tmp_path, "disk").open("s")


async def test_a_bad_record_before_one_written_without_sync_is_corruption(tmp_path: Path) -> None:
    path = await group(tmp_path, [1, 2])
    store = make_store(tmp_path, "process")
    storage = await store.open("s")
    await storage.submit(commit(3))
    await store.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"x\n", *lines[3:]]))

    with pytest.raises(CorruptSession, match="and line 5 after it is whole"):
        await make_store(tmp_path, "disk").open("s")


async def test_a_foreign_record_is_never_taken_in(tmp_path: Path) -> None:
    path = await fill(tmp_path / "a", 2)
    store = make_store(tmp_path / "b")
    await store.create("other")
    storage = await store.open("other")
    await storage.submit([SetValue(AT, b'"foreign"')])
    await store.close()
    foreign = (tmp_path / "b" / "other.jsonl").read_bytes().splitlines(keepends=True)[1]
    good = path.read_bytes().splitlines(keepends=True)

    path.write_bytes(b"".join([*good, foreign]))
    store = make_store(tmp_path / "a")
    storage = await store.open("s")
    assert await numbers(storage) == [0, 1]
    assert "belongs to session 'other'" in storage.findings[0]
    await storage.close()

    path.write_bytes(b"".join([*good[:2], foreign, *good[2:]]))
    with pytest.raises(CorruptSession, match="belongs to session 'other'"):
        await store.open("s")
    await store.close()


async def test_a_file_of_another_session_is_refused(tmp_path: Path) -> None:
    path = await fill(tmp_path, 1)
    path.rename(tmp_path / "t.jsonl")

    with pytest.raises(CorruptSession, match="the file holds session 's'"):
        await make_store(tmp_path).open("t")


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda c: c["c"].__setitem__(0, 1), CorruptSession, "sequence number 1 comes again"),
        (lambda c: c["c"].__setitem__(0, 99), CorruptSession, "sequence numbers 9 to 98 are missing"),
        (lambda c: c["c"].__setitem__(3, 0), CorruptSession, "two owners wrote"),
        (lambda c: c["c"].__setitem__(4, 77), CorruptSession, "open operations are said to be at byte 77"),
        (lambda c: c["w"][0].__setitem__(1, "e0"), CorruptSession, "entry id 'e0' comes again"),
        (lambda c: c["w"][0].__setitem__(4, "e9"), CorruptSession, "its parent 'e9' is not before it"),
        (lambda c: c["w"][2].__setitem__(3, 1), CorruptSession, "lengths of the payloads"),
        (lambda c: c["w"][0].__setitem__(0, "?"), UnsupportedFormat, "this version does not know"),
        (lambda c: c["w"][0].__setitem__(1, -1), UnsupportedFormat, "this version does not know"),
        (lambda c: c["w"][2].__setitem__(3, -1), UnsupportedFormat, "this version does not know"),
        (lambda c: c["w"][0].__setitem__(2, 5), UnsupportedFormat, "this version does not know"),
    ],
)
async def test_a_whole_record_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], None], error: type[AgentLaneError], reason: str
) -> None:
    path = await fill(tmp_path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], reseal(lines[3], change)]))
    before = path.read_bytes()

    with pytest.raises(error, match=reason):
        await make_store(tmp_path).open("s")
    assert path.read_bytes() == before


@pytest.mark.parametrize("behind", [b"", b"torn\n"], ids=["", "behind a torn record"])
@pytest.mark.parametrize(
    "rest",
    [
        b'"c":[9,5,"s",1,{"o":1},0],"w":[["s","app.x","k",1]],"p":[1]}',
        b'"c":[9,5,"s",1,[["o","main",1,"new"]],0],"w":[["s","app.x","k",1]],"p":[1]}',
        b'"c":[9,5,"s",1,0,0,"new"],"w":[["s","app.x","k",1]],"p":[1]}',
        b'"c":[9,5,"s",1,0,0],"z":7,"w":[["s","app.x","k",1]],"p":[1]}',
        b'"snapshot":{"x":1}}',
        b'"agentlane":1,"s":"s","t":1,"m":{}}',
        b'"c":[9,',
    ],
    ids=["operations", "an operation", "envelope", "field", "kind", "header", "no JSON"],
)
async def test_a_whole_record_of_unknown_shape_is_never_a_tail(tmp_path: Path, rest: bytes, behind: bytes) -> None:
    path = await fill(tmp_path, 2, "disk")
    before = path.read_bytes() + behind + seal(rest)
    path.write_bytes(before)
    store = make_store(tmp_path)

    for act in (lambda: store.open("s"), lambda: store.open("s", read_only=True), store.open_operations):
        with pytest.raises((UnsupportedFormat, CorruptSession)) as refused:
            await act()
        assert isinstance(refused.value, UnsupportedFormat) or rest == b'"c":[9,'
    assert path.read_bytes() == before
    assert [info.id for info in await store.list()] == ["s"]


@pytest.mark.parametrize(
    "rest",
    [
        b'"c":[9,5,"s",1,0,0],"w":[["s","app.x","k",1,"new"]],"p":[1]}',
        b'"c":[9,5,"s",1,0,0],"w":[["z","app.x","k",1]],"p":[1]}',
        b'"c":[9,5,"s",1,0,0],"w":[["s","app.x","k",1]],"p":[1],"q":[2]}',
        b'"c":[9,5,"s",1,0,0],"w":[["d","app.x","k"]],"p":[],"q":[2]}',
        b'"c":[9,5,"s",1,0,0],"w":[["u",39]],"p":[{"id":"u9","kind":"refund","usage":{}}]}',
    ],
    ids=["field of a write", "tag", "field behind", "field behind nothing", "kind of usage"],
)
async def test_unknown_things_in_a_whole_record_are_a_newer_format(tmp_path: Path, rest: bytes) -> None:
    path = await fill(tmp_path, 2)
    before = path.read_bytes() + seal(rest)
    path.write_bytes(before)

    with pytest.raises(UnsupportedFormat, match="line 4 "):
        await make_store(tmp_path).open("s")
    assert path.read_bytes() == before


async def test_a_header_with_a_field_of_a_newer_version_is_unsupported(tmp_path: Path) -> None:
    path = await fill(tmp_path, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(reseal(lines[0], lambda header: header.update(new=1)) + lines[1])
    store = make_store(tmp_path)

    for act in (lambda: store.open("s"), store.list):
        with pytest.raises(UnsupportedFormat):
            await act()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_clock_before_1970_loses_no_commit(tmp_path: Path, durability: Durability) -> None:
    for _ in range(2):
        store = JsonlStore(tmp_path, durability=durability, clock=ManualClock(start_ms=-5))
        if not await store.list():
            await store.create("s")
        storage = await store.open("s")
        number = storage.stats().entries
        await storage.submit(commit(number))
        await store.close()

    storage = await make_store(tmp_path).open("s")
    assert await numbers(storage) == [0, 1]
    assert [row.at for row in await storage.scan()] == [-5, -5]
    assert not storage.findings


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 500, b'{"some":"json"}\n', b"text", b'{"k":"00000000",'])
async def test_a_file_without_a_header_is_refused_by_everything(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.jsonl").write_bytes(content)
    store = make_store(tmp_path)

    for act in (lambda: store.open("s"), lambda: store.open("s", read_only=True), store.list, store.open_operations):
        with pytest.raises(CorruptSession, match="line 1"):
            await act()
    assert (tmp_path / "s.jsonl").read_bytes() == content


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_newer_format_is_its_own_error(tmp_path: Path, sealed: bool) -> None:
    path = await fill(tmp_path, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    newer = reseal(lines[0], lambda header: header.update(agentlane=3, s={"id": "s"}))
    path.write_bytes((newer if sealed else b'{"agentlane":3,"check":"otherwise"}\n') + lines[1])
    before = path.read_bytes()
    store = make_store(tmp_path)

    for act in (lambda: store.open("s"), store.list):
        with pytest.raises(UnsupportedFormat, match="format 3, and this version reads up to 2"):
            await act()
    assert path.read_bytes() == before


async def test_a_folder_a_link_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "s.jsonl")
    store = make_store(tmp_path)

    os.mkfifo(tmp_path / "pipe.jsonl")
    with closing(socket.socket(socket.AF_UNIX)) as served:
        served.bind(os.path.relpath(tmp_path / "socket.jsonl"))
    for name in ("folder", "link", "pipe", "socket"):
        for read_only in (False, True):
            with pytest.raises(CorruptSession, match="a session is a plain file"):
                await store.open(name, read_only=read_only)
    with pytest.raises(UnknownSession):
        await store.open("missing")
    assert not (tmp_path / "missing.jsonl.lock").exists()
    for look in (store.list, store.open_operations):
        with pytest.raises(CorruptSession, match="a session is a plain file"):
            await look()


@pytest.mark.parametrize("place", ["file", "file/below"])
async def test_a_store_in_a_file_is_refused_by_everything(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    store = make_store(tmp_path / place)
    for act in (store.list, store.create, store.open_operations, lambda: store.open("s"), lambda: store.delete("s")):
        with pytest.raises(InvalidName, match="name a folder"):
            await act()
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_link_to_the_file_of_one_session_is_that_session(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    (tmp_path / "link.jsonl").symlink_to("s.jsonl")

    assert session_of(tmp_path / "link.jsonl") == "s"
    store = JsonlStore.for_file(tmp_path / "link.jsonl")
    assert await numbers(await store.open("s")) == [0]
    await store.close()


# The disk.


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_short_writes_are_continued(tmp_path: Path, durability: Durability) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, durability, disk)
    await store.create("s")
    storage = await store.open("s")
    disk.write_at_most = [1, 100, 7]

    await storage.submit(commit(0))

    assert disk.calls["write"] == 1 + 4
    await storage.close()
    assert await numbers(await store.open("s")) == [0]
    await store.close()


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("taken", [0, 1, 150])
async def test_a_full_disk_faults_and_leaves_the_last_good_size(
    tmp_path: Path, durability: Durability, taken: int
) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, durability, disk)
    await store.create("s")
    storage = await store.open("s")
    await storage.submit(commit(0))
    size = (tmp_path / "s.jsonl").stat().st_size
    told: list[BaseException] = []
    storage.on_fault = told.append
    disk.full_after(taken)

    with pytest.raises(SessionFaulted) as failed:
        await storage.submit(commit(1))

    assert isinstance(failed.value.__cause__, OSError) and failed.value.__cause__.errno == errno.ENOSPC
    assert told == [failed.value.__cause__]
    assert (tmp_path / "s.jsonl").stat().st_size == size
    assert await numbers(storage) == [0]
    with pytest.raises(SessionFaulted):
        storage.submit(commit(1))
    await storage.close()
    storage = await store.open("s")  # space is back
    await storage.submit(commit(1))
    assert await numbers(storage) == [0, 1]
    assert not storage.findings
    await store.close()


async def test_what_cannot_be_cut_back_is_a_torn_tail_to_the_next_owner(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "process", disk)
    await store.create("s")
    storage = await store.open("s")
    await storage.submit(commit(0))
    disk.full_after(40)
    disk.fail["truncate"] = [errno.EIO]
    with pytest.raises(SessionFaulted):
        await storage.submit(commit(1))
    await storage.close()

    storage = await store.open("s")
    assert await numbers(storage) == [0]
    await storage.submit(commit(1))
    assert (tmp_path / "s.jsonl.torn-1").stat().st_size == 40
    await store.close()


async def test_a_full_disk_while_a_tail_is_cut_loses_nothing(tmp_path: Path) -> None:
    path = await fill(tmp_path, 2)
    with path.open("ab") as file:
        file.write(b"torn")
    disk = TestDisk()
    store = make_store(tmp_path, "process", disk)
    storage = await store.open("s")
    disk.full_after(2)
    with pytest.raises(SessionFaulted):
        await storage.submit(commit(2))
    assert path.read_bytes().endswith(b"\ntorn")
    await storage.close()

    storage = await store.open("s")
    await storage.submit(commit(2))
    assert await numbers(storage) == [0, 1, 2]
    assert (tmp_path / "s.jsonl.torn-1").read_bytes() == b"torn"
    assert not (tmp_path / "s.jsonl.torn-2").exists(), "half a copy was left"
    await store.close()


@pytest.mark.parametrize("call", ["sync", "sync_folder"])
async def test_a_failed_sync_faults_every_commit_on_its_way_in_order(tmp_path: Path, call: str) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    order: list[str] = []
    storage.on_fault = lambda error: order.append(f"fault {error.__class__.__name__}")
    disk.sync_gate = threading.Event()
    disk.fail[call] = [errno.EIO]
    disk.syncing.clear()
    pending = [storage.submit(commit(0)), storage.submit(commit(1))]
    while not disk.syncing.is_set():
        await asyncio.sleep(0)
    pending += [storage.submit(commit(2))]

    async def wait(number: int) -> None:
        with pytest.raises(SessionFaulted, match="Input/output error"):
            await pending[number]
        order.append(f"failed {number}")

    waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    disk.sync_gate.set()
    await asyncio.gather(*waiting)

    assert order == ["fault OSError", "failed 0", "failed 1", "failed 2"]
    assert [each.done() for each in pending] == [True] * 3
    assert await numbers(storage) == []
    await storage.close()
    storage = await store.open("s")
    assert await numbers(storage) == []
    await store.close()


async def test_a_full_disk_while_creating_leaves_no_session(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    disk.full_after(10)

    with pytest.raises(OSError, match="No space left"):
        await store.create("s")

    assert os.listdir(tmp_path) == []
    await store.create("s")
    assert [info.id for info in await store.list()] == ["s"]


async def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        await fill(tmp_path / "new" / "folder", 1)
    finally:
        os.umask(before)

    folder = tmp_path / "new" / "folder"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder)] == [0o700, 0o700]
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {
        "s.jsonl": 0o600,
        "s.jsonl.lock": 0o600,
    }


# Syncs.


async def test_commits_that_arrive_together_cost_one_write_and_one_sync(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    published: list[int] = []
    before = disk.calls.copy()

    async def lane(number: int) -> None:
        await storage.submit([put(number)], publish=lambda commit: published.append(commit.first_seq))

    await asyncio.gather(*(lane(number) for number in range(100)))

    assert (disk.calls - before)["sync"] == 1
    assert (disk.calls - before)["write"] == 1
    assert (disk.calls - before)["sync_folder"] == 1  # the first of this opening, and no more
    assert published == list(range(1, 101))
    await storage.submit([put(0)])
    assert (disk.calls - before)["sync_folder"] == 1
    await store.close()


async def test_the_first_commit_on_a_history_of_others_syncs_that_first(tmp_path: Path) -> None:
    await fill(tmp_path, 1, "process")
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    storage = await store.open("s")

    await asyncio.gather(*(storage.submit([put(number)]) for number in range(100)))

    assert (disk.calls["sync"], disk.calls["write"], disk.calls["sync_folder"]) == (2, 1, 1)
    await storage.submit([put(0)])
    assert (disk.calls["sync"], disk.calls["write"], disk.calls["sync_folder"]) == (3, 2, 1)
    await store.close()


async def test_commits_that_arrive_while_a_sync_runs_share_the_next(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    before = disk.calls["sync"]
    disk.sync_gate = threading.Event()
    disk.syncing.clear()
    first = storage.submit(commit(0))
    while not disk.syncing.is_set():
        await asyncio.sleep(0)
    later = []
    for number in range(1, 20):
        later.append(storage.submit(commit(number)))
        await asyncio.sleep(0)
    assert not first.done() and await storage.scan() == [] and storage.stats().entries == 0
    disk.sync_gate.set()
    await later[-1]

    assert first.done() and all(each.done() for each in later)
    assert disk.calls["sync"] - before == 2
    await store.close()


async def test_a_new_file_and_its_folder_are_synced_before_create_returns(tmp_path: Path) -> None:
    disk = TestDisk()
    await make_store(tmp_path / "a" / "b", "disk", disk).create("s")

    assert disk.calls["sync"] == 1
    assert disk.calls["sync_folder"] == 3  # each folder's entry in the one above, and the file's


async def test_process_durability_never_syncs_and_reports_inside_submit(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "process", disk)
    await store.create("s")
    storage = await store.open("s")

    assert storage.submit(commit(0)).result().first_seq == 1
    assert (disk.calls["sync"], disk.calls["sync_folder"]) == (0, 0)
    assert disk.calls["write"] == 2
    await store.close()


async def test_a_cancelled_wait_changes_nothing_about_the_commit(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    disk.sync_gate = threading.Event()
    published: list[int] = []

    async def wait() -> None:
        await storage.submit(commit(0), publish=lambda commit: published.append(commit.first_seq))

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    disk.sync_gate.set()
    await storage.submit(commit(1))

    assert published == [1]
    assert await numbers(storage) == [0, 1]
    await store.close()


# Ownership.


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("harm", ["removed", "replaced", "longer", "shorter", "lock removed", "lock replaced"])
async def test_a_file_that_is_not_as_we_left_it_is_ownership_lost(
    tmp_path: Path, durability: Durability, harm: str
) -> None:
    store = make_store(tmp_path, durability)
    await store.create("s")
    storage = await store.open("s")
    await storage.submit(commit(0))
    path, lock = tmp_path / "s.jsonl", tmp_path / "s.jsonl.lock"
    content = path.read_bytes()
    if harm in ("removed", "replaced"):
        path.rename(tmp_path / "elsewhere")
    if harm == "replaced":
        path.write_bytes(content)
    if harm == "longer":
        path.write_bytes(content + b"x")
    if harm == "shorter":
        path.write_bytes(content[:-1])
    if harm.startswith("lock"):
        lock.rename(tmp_path / "elsewhere")
    if harm == "lock replaced":
        lock.touch()
    after = path.read_bytes() if path.exists() else None
    told: list[BaseException] = []
    storage.on_fault = told.append

    with pytest.raises(OwnershipLost):
        await storage.submit(commit(1))

    assert [type(error) for error in told] == [OwnershipLost]
    with pytest.raises(SessionFaulted) as later:
        storage.submit(commit(1))
    assert isinstance(later.value.__cause__, OwnershipLost)
    assert (path.read_bytes() if path.exists() else None) == after
    await store.close()


async def test_a_second_owner_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    for other in (store, make_store(tmp_path)):
        with pytest.raises(SessionOwned, match="in this same process"):
            await other.open("s")
        with pytest.raises(SessionOwned):
            await other.delete("s")
    script = (
        "import asyncio, sys\nfrom agentlane.errors import SessionOwned\n"
        "from agentlane.storage.jsonl import JsonlStore\n"
        "try:\n    asyncio.run(JsonlStore(sys.argv[1]).open('s'))\nexcept SessionOwned as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"by process {os.getpid()} on" in said.stdout

    reader = await make_store(tmp_path).open("s", read_only=True)
    assert await numbers(reader) == []
    await reader.close()
    await storage.close()
    await (await make_store(tmp_path).open("s")).close()


async def test_other_files_in_the_folder_are_not_seen(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    for name in ("my notes.jsonl", ".hidden.jsonl", ".s.jsonl.new", "s.jsonl.bak", "notes.txt"):
        (tmp_path / name).write_text("text")
    store = make_store(tmp_path)

    assert [info.id for info in await store.list()] == ["s"]
    assert await store.open_operations() == []


async def test_epochs_grow_with_each_owner_that_commits(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    epochs = []
    for number in range(3):
        for commits in (False, True):
            storage = await store.open("s")
            epochs.append(storage.epoch)
            if commits:
                await storage.submit(commit(number))
            await storage.close()

    assert epochs == [1, 1, 2, 2, 3, 3]


async def test_deleting_removes_every_file_of_the_session_and_no_other(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    (tmp_path / "s.jsonl.torn-1").write_bytes(b"torn")
    store = make_store(tmp_path)
    others = ["s.jsonl.torn-1", "s.jsonl.torn-1.jsonl.torn-2", "s2"]  # ids may look like what lies beside a file
    for each in others:
        await store.create(each)
    found = (await store.verify("s")).findings
    assert [each.place for each in found if each.code == "set_aside"] == ["s.jsonl.torn-1"]

    await store.delete("s")

    assert sorted(os.listdir(tmp_path)) == sorted(f"{each}.jsonl{end}" for each in others for end in ("", ".lock"))
    with pytest.raises(UnknownSession):
        await store.delete("s")
    await store.create("s")
    assert [info.id for info in await store.list()] == ["s", *others]


async def test_the_lock_file_goes_last_and_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(tmp_path, 1)
    seen: list[tuple[bool, bool]] = []
    real = OwnerLock.release

    def release(lock: OwnerLock, *, unlink: bool = False) -> None:
        seen.append((unlink, (tmp_path / "s.jsonl").exists()))
        with pytest.raises(SessionOwned):
            OwnerLock.acquire(lock.path, error=SessionOwned, what="s")
        real(lock, unlink=unlink)

    monkeypatch.setattr(OwnerLock, "release", release)
    await make_store(tmp_path).delete("s")

    assert seen == [(True, False)]
    assert os.listdir(tmp_path) == []


async def test_descriptors_and_threads_stay_flat(tmp_path: Path, whole: bool) -> None:
    store = make_store(tmp_path, "disk")
    await store.create("s")
    await (await store.open("s")).close()
    before = descriptors(), threading.active_count()
    for number in range(1000):
        storage = await store.open("s", read_only=number % 3 == 0)
        if number % 100 == 1 and not storage.read_only:
            await storage.submit([put(number)])
        if number % 2:
            await storage.close()
        else:
            storage.kill()

    assert (descriptors(), threading.active_count()) == before
    await store.close()


async def test_closing_waits_for_what_was_submitted_also_when_it_is_cancelled(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    disk.sync_gate = threading.Event()
    published: list[int] = []
    storage.submit(commit(0), publish=lambda commit: published.append(commit.first_seq))
    closing = asyncio.ensure_future(storage.close())
    await asyncio.sleep(0)
    with pytest.raises(SessionClosed):
        storage.submit(commit(1))
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    assert not closing.done()
    disk.sync_gate.set()
    with pytest.raises(asyncio.CancelledError):
        await closing

    assert published == [1]
    with pytest.raises(SessionClosed):
        storage.stats()
    await storage.close()
    assert await numbers(await store.open("s")) == [0]
    await store.close()


async def test_closing_a_store_closes_every_session_also_when_it_is_cancelled(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    names = ["a", "b", "c"]
    for name in names:
        await store.create(name)
    storages = [await store.open(name) for name in names]
    disk.sync_gate = threading.Event()
    pending = [storage.submit(commit(0)) for storage in storages]
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    disk.sync_gate.set()
    with pytest.raises(asyncio.CancelledError):
        await closing

    assert all(each.done() for each in pending)
    other = make_store(tmp_path, "disk")
    for name in names:
        assert await numbers(await other.open(name)) == [0]
    await other.close()


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_file_that_cannot_be_closed_holds_neither_lock_nor_thread_nor_other_sessions(
    tmp_path: Path, durability: Durability
) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, durability, disk)
    threads = threading.active_count()
    for name in ("a", "b"):
        await store.create(name)
        await (await store.open(name)).submit(commit(0))
    disk.fail["close"] = [errno.EIO]

    with pytest.raises(OSError, match="Input/output error"):
        await store.close()

    assert threading.active_count() == threads
    other = make_store(tmp_path, durability)
    for name in ("a", "b"):
        assert await numbers(await other.open(name)) == [0]
    await other.close()


def test_a_loop_that_ends_before_the_report_is_no_error(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    gate = threading.Event()

    async def begin() -> SessionStorage:
        await store.create("s")
        storage = await store.open("s")
        disk.sync_gate = gate
        disk.syncing.clear()
        storage.submit(commit(0))
        while not disk.syncing.is_set():
            await asyncio.sleep(0)
        return storage

    storage = asyncio.run(begin())
    gate.set()
    storage.kill()  # waits for the thread, which finds the loop closed

    async def look() -> list[int]:
        again = await store.open("s")
        found = await numbers(again)
        await store.close()
        return found

    assert asyncio.run(look()) == [0]


async def opened(store: JsonlStore, writes: list[Write], *, wait: bool) -> tuple[SessionStorage, Pending]:
    """A session with one commit, reported or submitted a moment ago."""
    storage = await store.open("s")
    pending = storage.submit(writes)
    if wait:
        await pending
    return storage, pending


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_session_is_used_on_its_own_loop_alone(tmp_path: Path, durability: Durability) -> None:
    store = make_store(tmp_path, durability)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(store.create("s"))
    storage, _ = loop.run_until_complete(opened(store, commit(0), wait=True))

    async def elsewhere() -> None:
        with pytest.raises(WrongLoop):
            storage.submit(commit(1))
        for act in (storage.scan, storage.close, lambda: storage.value(AT), store.close):
            with pytest.raises(WrongLoop):
                await act()

    asyncio.run(elsewhere())
    with pytest.raises(WrongLoop):
        storage.stats()
    done = loop.run_until_complete(opened_again(storage))
    assert done == [0, 1]
    loop.run_until_complete(storage.close())
    asyncio.run(storage.close())  # it is closed already
    loop.close()


async def opened_again(storage: SessionStorage) -> list[int]:
    await storage.submit(commit(1))
    return await numbers(storage)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("wait", [True, False])
def test_closing_from_another_loop_lets_go_once_that_of_the_session_is_closed(
    tmp_path: Path, durability: Durability, wait: bool
) -> None:
    unheard = threading.Event()

    class Held(FileSystem):
        """Syncs nothing before nobody is there who could be told of it."""

        def sync(self, descriptor: int) -> None:
            assert unheard.wait(60)
            super().sync(descriptor)

    asyncio.run(make_store(tmp_path, durability).create("s"))
    store = JsonlStore(tmp_path, durability=durability, files=FileSystem() if wait else Held())
    before = descriptors(), threading.active_count()
    storage, pending = asyncio.run(opened(store, commit(0), wait=wait))
    unheard.set()

    async def later() -> None:
        with pytest.raises(WrongLoop):
            storage.submit(commit(1))
        await asyncio.wait_for(storage.close(), 10)
        await storage.close()
        if not wait and durability == "disk":
            with pytest.raises(SessionFaulted, match="its event loop was closed"):
                await pending
        again = await make_store(tmp_path, durability).open("s")
        assert await numbers(again) in ([0], [] if not wait else [0])
        await again.close()

    asyncio.run(later())
    assert (descriptors(), threading.active_count()) == before


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("same_store", [True, False])
def test_a_session_that_was_forgotten_with_its_loop_is_taken_over(
    tmp_path: Path, durability: Durability, same_store: bool
) -> None:
    store = make_store(tmp_path, durability)
    asyncio.run(store.create("s"))
    before = descriptors(), threading.active_count()
    kept = [asyncio.run(opened(store, commit(0), wait=True))]

    async def later() -> None:
        other = store if same_store else make_store(tmp_path, durability)
        again, _ = await opened(other, commit(1), wait=True)
        assert await numbers(again) == [0, 1]
        with pytest.raises(SessionClosed):
            kept[0][0].submit(commit(2))
        await kept[0][0].close()
        with pytest.raises(SessionOwned):
            await make_store(tmp_path, durability).open("s")
        await other.close()

    asyncio.run(later())
    assert (descriptors(), threading.active_count()) == before


def test_a_report_that_reaches_nobody_leaves_the_session_faulted(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    asyncio.run(store.create("s"))
    disk.sync_gate = threading.Event()

    async def begin() -> tuple[SessionStorage, Pending]:
        disk.syncing.clear()
        found = await opened(store, commit(0), wait=False)
        while not disk.syncing.is_set():
            await asyncio.sleep(0)
        return found

    storage, pending = asyncio.run(begin())
    disk.sync_gate.set()
    asyncio.run(storage.close())

    with pytest.raises(SessionFaulted, match="whether they are in the file shows when it is opened again"):
        pending.result()


def test_a_forgotten_close_does_not_hold_the_interpreter(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from agentlane.data.writes import Address, SetValue
from agentlane.storage.jsonl import JsonlStore
async def main():
    store = JsonlStore(sys.argv[1])
    await store.create("s")
    storage = await store.open("s")
    await storage.submit([SetValue(Address("app.x", "y"), b"1")])
    print("committed")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "committed\n"


def test_a_forked_child_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from agentlane.data.writes import Address, SetValue
from agentlane.errors import SessionOwned, WrongProcess
from agentlane.storage.jsonl import JsonlStore
async def main():
    store = JsonlStore(sys.argv[1], durability=sys.argv[2])
    await store.create("s")
    storage = await store.open("s")
    reader = await store.open("s", read_only=True)
    write = [SetValue(Address("app.x", "y"), b"1")]
    await storage.submit(write)
    child = os.fork()
    if child == 0:
        for act in (lambda: storage.submit(write), storage.stats, reader.stats):
            try:
                act()
            except WrongProcess:
                print("refused", flush=True)
        storage.kill()
        os._exit(0)
    os.waitpid(child, 0)
    await storage.submit(write)
    try:
        await JsonlStore(sys.argv[1]).open("s")
    except SessionOwned:
        print("owned")
    await store.close()
asyncio.run(main())
"""
    for durability in DURABILITIES:
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / durability), durability],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout == "refused\nrefused\nrefused\nowned\n"


# Killing, for crash tests.


class Stop(BaseException):
    """What a probe raises."""


class StopAt:
    """A probe that stops everything at one boundary."""

    def __init__(self, boundary: str) -> None:
        self.boundary = boundary
        self.seen: list[str] = []

    def reached(self, boundary: str) -> None:
        self.seen.append(boundary)
        if boundary == self.boundary:
            raise Stop(boundary)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("boundary", "there"), [("before", [0]), ("inside", [0]), ("after", [0, 1])])
async def test_a_probe_that_stops_a_commit_leaves_what_a_killed_process_would(
    tmp_path: Path, durability: Durability, boundary: str, there: list[int]
) -> None:
    store = make_store(tmp_path, durability)
    await store.create("s")
    probe = StopAt(f"commit.second.{boundary}")
    storage = await store.open("s", probe=probe)
    await storage.submit(commit(0), name="first")
    size = (tmp_path / "s.jsonl").stat().st_size
    stopped: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    storage.on_fault = stopped.set_result
    published: list[int] = []

    if durability == "process" or boundary == "before":
        with pytest.raises(Stop):
            storage.submit(commit(1), publish=lambda commit: published.append(commit.first_seq), name="second")
        pending = None
    else:
        pending = storage.submit(commit(1), publish=lambda commit: published.append(commit.first_seq), name="second")
        assert isinstance(await stopped, Stop)

    assert probe.seen[:3] == ["commit.first.before", "commit.first.inside", "commit.first.after"]
    assert published == ([5] if boundary == "after" else [])
    assert pending is None or not pending.done()
    with pytest.raises(SessionClosed):
        storage.stats()
    if boundary == "inside":
        assert (tmp_path / "s.jsonl").stat().st_size > size
    again = await store.open("s")
    assert await numbers(again) == there
    assert bool(again.findings) is (boundary == "inside")
    await again.submit(commit(len(there)))
    await store.close()


async def test_a_killed_session_reports_nothing_more_and_can_be_opened_at_once(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "disk", disk)
    await store.create("s")
    storage = await store.open("s")
    reports: list[object] = []
    storage.on_fault = reports.append
    pending = [storage.submit(commit(number), publish=reports.append) for number in range(3)]
    await asyncio.sleep(0)
    storage.kill()
    storage.kill()
    again = await store.open("s")

    there = await numbers(again)
    await again.submit(commit(len(there)))
    assert there in ([], [0, 1, 2])
    assert reports == [] and not any(each.done() for each in pending)
    await storage.close()
    await store.close()


# Places and cost.


async def test_payloads_come_back_byte_for_byte(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    payloads = [
        b" { } ",
        b'"\xe2\x80\xa8\xc2\x85\\u0000\r"',
        b"[1,\t2]",
        b"0",
        b'{"a":1,"a":2}',
        b'"' + b"x" * 700_000 + b'"',
    ]
    await storage.submit([SetValue(Address("app.test", str(n)), payload) for n, payload in enumerate(payloads)])
    keys = ['"quoted"', "ünï\u2028", "a|b", "\\"]
    await storage.submit([SetValue(Address("app.keys", key), b"1") for key in keys])

    for _ in range(2):
        assert list((await storage.values("app.test")).values()) == payloads
        assert list(await storage.values("app.keys")) == sorted(keys)
        await storage.close()
        storage = await store.open("s")
    await store.close()


async def test_bytes_of_a_commit_do_not_depend_on_the_history(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "process", disk)
    await store.create("s")
    storage = await store.open("s")
    sizes = []
    for number in range(1000, 1500):
        before = disk.bytes_written
        await storage.submit(
            [InsertEntry(f"e{number}", f"e{number - 1}" if number > 1000 else None, "m", b"1"), put(number)]
        )
        sizes.append(disk.bytes_written - before)

    assert max(sizes[1:]) - min(sizes[1:]) <= 4  # the digits of the sequence number
    assert max(sizes) < 200
    await store.close()


async def test_ids_that_follow_each_other_are_short_and_come_back_whole(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    base = "01890a5d-ac96-774b-bcce-b302099a"
    ids = [base + tail for tail in ("0000", "0001", "00ff", "00FF", "zzzz", " 12f", "ffff")]
    await storage.submit([InsertEntry(each, None if n == 0 else ids[n - 1], "m", b"1") for n, each in enumerate(ids)])
    line = (tmp_path / "s.jsonl").read_bytes().splitlines()[1]
    assert line.count(base.encode()) == 4
    await storage.close()

    storage = await store.open("s")
    assert [row.id for row in await storage.path(ids[-1], newest_first=False)] == ids
    await store.close()


async def test_open_operations_are_read_from_the_end_of_the_file(tmp_path: Path) -> None:
    disk = TestDisk()
    store = make_store(tmp_path, "process", disk)
    for name in ("s", "t"):
        await store.create(name)
        storage = await store.open(name)
        for number, lane in ((2, "b"), (1, "a"), (3, "c")):
            meta = b'{"lane":"%s","started_at":%d,"more":[1]}' % (lane.encode(), number)
            await storage.submit([SetValue(Address("op.meta", f"{name}{number}"), meta), put(number)])
        await storage.submit([DeleteValue(Address("op.meta", f"{name}3"))])
        for number in range(3000):
            await storage.submit([SetValue(AT, b'"%d%s"' % (number, b"x" * 300))])
        if name == "s":
            await storage.close()  # the other is open, and is listed all the same
    before = disk.bytes_read

    found = await store.open_operations()

    assert [tuple(each) for each in found] == [
        ("s", "s1", "a", 1),
        ("t", "t1", "a", 1),
        ("s", "s2", "b", 2),
        ("t", "t2", "b", 2),
    ]
    assert disk.bytes_read - before < 1_000_000 < (tmp_path / "s.jsonl").stat().st_size
    await store.close()


async def test_open_operations_of_a_tail_are_not_listed(tmp_path: Path) -> None:
    store = make_store(tmp_path, "disk")
    await store.create("s")
    storage = await store.open("s")
    meta = b'{"lane":"a","started_at":1}'
    await storage.submit([SetValue(Address("op.meta", "o1"), meta)])
    pending = [storage.submit([put(1)]), storage.submit([SetValue(Address("op.meta", "o2"), meta)])]
    for each in pending:
        await each
    await storage.close()
    assert [each.operation_id for each in await store.open_operations()] == ["o1", "o2"]
    path = tmp_path / "s.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0" * 10 + b"\n", lines[3]]))

    assert [each.operation_id for each in await store.open_operations()] == ["o1"]
    storage = await store.open("s")
    await storage.submit([put(2)])
    assert [each.operation_id for each in await store.open_operations()] == ["o1"]
    await store.close()


async def test_superseded_values_cost_no_memory(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    await storage.submit([put(1)])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            await storage.submit([put(1)])
        each = (tracemalloc.get_traced_memory()[0] - before) / 2000
    finally:
        tracemalloc.stop()

    assert each < 40  # its seq and time, and nothing of what it held
    await store.close()


async def test_a_commit_that_is_too_long_is_refused_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "TAIL_BYTES_MAX", 1000)
    path = await fill(tmp_path, 1)
    before = path.read_bytes()
    store = make_store(tmp_path)
    storage = await store.open("s")

    with pytest.raises(PayloadTooLarge):
        storage.submit([SetValue(AT, b'"' + b"x" * 1000 + b'"')])

    assert path.read_bytes() == before
    assert (await storage.submit(commit(1))).first_seq == 5
    await store.close()


UNREADABLE = [
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(input_tokens="7"))),  # type: ignore[arg-type]
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(input_tokens=1.5))),  # type: ignore[arg-type]
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(cost_nanos=True))),
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(output_tokens=2**63))),
    InsertUsage(UsageRow(id="u9", kind="refund", usage=Usage())),  # type: ignore[arg-type]
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(), note=5)),  # type: ignore[arg-type]
    InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(), model=["m"])),  # type: ignore[arg-type]
    InsertUsage(UsageRow(id=9, kind="attempt", usage=Usage())),  # type: ignore[arg-type]
    InsertUsage(None),  # type: ignore[arg-type]
    InsertEntry(9, None, "m", b"1"),  # type: ignore[arg-type]
    InsertEntry("e9", None, 9, b"1"),  # type: ignore[arg-type]
    SetValue(Address(9, "k"), b"1"),  # type: ignore[arg-type]
    SetValue(Address("app.x", 9), b"1"),  # type: ignore[arg-type]
    SetValue(Address("\ud800", "k"), b"1"),
    DeleteValue(Address("app.x", 9)),  # type: ignore[arg-type]
    SetValue(AT, "1"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("bad", UNREADABLE, ids=str)
async def test_what_could_not_be_read_again_is_refused_and_moves_no_number(
    tmp_path: Path, durability: Durability, bad: Write
) -> None:
    store = make_store(tmp_path, durability)
    await store.create("s")
    storage = await store.open("s")
    await storage.submit(commit(0))

    with pytest.raises(InvalidWrite):
        storage.submit([put(7), bad])

    assert (await storage.submit(commit(1))).first_seq == 5
    await storage.close()
    assert await numbers(await store.open("s")) == [0, 1]
    await store.close()


# One file.


async def test_a_store_for_one_file_sees_that_file_alone(tmp_path: Path) -> None:
    await fill(tmp_path, 2)
    await make_store(tmp_path).create("other")
    store = JsonlStore.for_file(tmp_path / "s.jsonl")

    assert [info.id for info in await store.list()] == ["s"]
    assert await numbers(await store.open("s")) == [0, 1]
    with pytest.raises(UnknownSession):
        await store.open("other")
    with pytest.raises(InvalidName, match="this store is the one file"):
        await store.create("third")
    await store.close()

    fresh = JsonlStore.for_file(tmp_path / "new" / "work.jsonl")
    assert await fresh.list() == [] and await fresh.open_operations() == []
    assert (await fresh.create()).id == "work"
    assert (tmp_path / "new" / "work.jsonl").exists()
    with pytest.raises(InvalidName):
        JsonlStore.for_file(tmp_path / "work.db")


async def test_a_store_that_is_closed_refuses_everything(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.create("s")
    storage = await store.open("s")
    await store.close()
    await store.close()

    with pytest.raises(SessionClosed):
        storage.submit([put(1)])
    for act in (store.list, store.create, store.open_operations, lambda: store.open("s"), lambda: store.delete("s")):
        with pytest.raises(SessionClosed):
            await act()


async def test_the_documented_example_is_a_session(tmp_path: Path) -> None:
    document = Path(__file__).parents[2] / "docs" / "reference" / "jsonl-format.md"
    (tmp_path / "demo.jsonl").write_text(document.read_text().split("```jsonl\n")[1].split("```")[0])
    store = make_store(tmp_path)
    assert (await store.list())[0].metadata == {"title": "Demo"}
    storage = await store.open("demo")

    assert not storage.findings
    tip = "01890a5d-ac96-774b-bcce-b302099b0002"
    assert [row.payload for row in await storage.path(tip)] == [
        b'{"type":"tool_result"}',
        b'{"type":"assistant"}',
        b'{"type":"user"}',
    ]
    assert storage.stats().usage.input_tokens == 12
    await store.close()
