"""Claim: whatever becomes of the bytes of a JSONL file, no half commit is ever read: a whole first part, or a refusal.

What is refused names its place and stays as it is. A torn tail is cut off by the next commit, kept and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentlane.data.writes import Address, SetValue, Write
from agentlane.errors import CorruptSession, UnsupportedFormat
from agentlane.storage.contract import Durability, SessionStorage
from agentlane.storage.framing import seal
from agentlane.storage.jsonl import JsonlStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.conformance.model import ReferenceSession, difference, dump
from tests.storage.faults.workload import LAST, NAMESPACES, commits

GROUPS = [writes for group in [*commits(), LAST] for writes in group]
TAIL_COMMITS = 3
"""How many of the last records are damaged byte by byte."""
DURABILITIES: list[Durability] = ["process", "disk"]


class Sample:
    """A session file with every kind of write, and what it holds after each of its commits."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.folder = folder
        self.path = folder / "s.jsonl"
        self.durability = durability
        self.models = [ReferenceSession().dump(NAMESPACES)]
        self.bytes = b""
        self.lines: list[bytes] = []
        self.foreign = b""
        """The last record of another session that is like this one."""

    async def make(self) -> Sample:
        for name in ("t", "s"):
            store = self.store()
            await store.create(name)
            storage, model = await store.open(name), ReferenceSession()
            for writes in GROUPS:
                model.commit(writes, await storage.submit(writes))
                if name == "s":
                    self.models.append(model.dump(NAMESPACES))
            await store.close()
        self.bytes = self.path.read_bytes()
        self.lines = self.bytes.splitlines(keepends=True)
        self.foreign = (self.folder / "t.jsonl").read_bytes().splitlines(keepends=True)[-1]
        return self

    def store(self) -> JsonlStore:
        return JsonlStore(self.folder, durability=self.durability, clock=ManualClock(), ids=CountingIds())

    def start_of(self, commit: int) -> int:
        """Where the line of a commit begins; commit 0 is the first."""
        return sum(map(len, self.lines[: commit + 1]))

    async def judge(self, damaged: bytes, what: str) -> tuple[int, str]:
        """How many commits are read, and the finding; or -1 and why it is refused. Nothing is written by that."""
        self.path.write_bytes(damaged)
        store = self.store()
        storage: SessionStorage | None = None
        refused: CorruptSession | UnsupportedFormat | None = None
        try:
            storage = await store.open("s")
        except (CorruptSession, UnsupportedFormat) as error:
            refused = error
        assert self.path.read_bytes() == damaged, f"{what}: opening changed the file"
        if refused is not None or storage is None:
            assert str(self.path) in str(refused), what
            assert not isinstance(refused, CorruptSession) or refused.details["offset"] is not None, what
            return -1, str(refused)
        found = await dump(storage, NAMESPACES)
        whole = [number for number, each in enumerate(self.models) if difference(found, each) is None]
        assert len(whole) == 1, f"{what}: what is read is the session after no whole commit"
        findings = tuple(storage.findings)
        await store.close()
        return whole[0], findings[0] if findings else ""

    async def goes_on(self, damaged: bytes, kept: int, what: str) -> None:
        """The next commits cut the tail off, keep it aside, and are there afterwards."""
        self.path.write_bytes(damaged)
        store = self.store()
        storage = await store.open("s")
        more: list[list[Write]] = GROUPS[kept:]
        for writes in more:
            await storage.submit(writes)
        await storage.submit([SetValue(Address("app.other", "k"), b"1")])
        await store.close()
        assert self.path.read_bytes().startswith(damaged[: self.start_of(kept)]), what
        store = self.store()
        storage = await store.open("s")
        assert difference(await dump(storage, NAMESPACES), self.models[-1]) is None, what
        assert not storage.findings
        await store.close()
        aside = list(self.folder.glob("s.jsonl.torn-*"))
        tail = damaged[self.start_of(kept) :]
        assert [each.read_bytes() for each in aside] == ([tail] if tail else []), what
        for each in aside:
            each.unlink()


@pytest.fixture(params=DURABILITIES)
async def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    return await Sample(tmp_path, request.param).make()


async def test_a_file_cut_at_any_byte_is_a_first_part_of_its_commits(sample: Sample, whole: bool) -> None:
    last = len(GROUPS)
    start = sample.start_of(last - TAIL_COMMITS)
    for place in range(start, len(sample.bytes) + 1, 1 if whole else 37):
        kept = max(each for each in range(last + 1) if sample.start_of(each) <= place)
        read, finding = await sample.judge(sample.bytes[:place], f"cut at {place}")
        assert read == kept, f"cut at {place}"
        assert (f"byte {sample.start_of(kept)}" in finding) == (place > sample.start_of(kept)), finding
        if (whole and place % 10 == 0) or place % 190 == 0:
            await sample.goes_on(sample.bytes[:place], kept, f"cut at {place}")


async def test_a_flipped_byte_is_refused_or_the_tail(sample: Sample, whole: bool) -> None:
    last = len(GROUPS)
    for place in range(sample.start_of(last - TAIL_COMMITS), len(sample.bytes), 1 if whole else 41):
        damaged = bytearray(sample.bytes)
        damaged[place] ^= 1 << place % 8
        commit = max(each for each in range(last) if sample.start_of(each) <= place)
        read, why = await sample.judge(bytes(damaged), f"byte {place}")
        if commit == last - 1:
            assert read == commit, (place, why)
        else:
            assert read in (-1, commit), (place, why)
        if read < 0:
            assert f"byte {sample.start_of(commit)}" in why, why


def insertions(sample: Sample) -> Iterator[tuple[str, bytes, int, int]]:
    """Damages by name: the file's bytes, which commits may be read at the most, and at the least, with -1 a refusal."""
    last, whole = len(GROUPS), sample.bytes
    middle, end = sample.start_of(2), sample.start_of(last - 1)
    for size in (1, 4096, 300_000):
        nul = b"\0" * size
        yield f"{size} NUL at the end", whole + nul, last, last
        yield f"{size} NUL instead of the last record", whole[:end] + nul, last - 1, last - 1
        yield f"{size} NUL over the last record's end", whole[: end + 40] + nul, last - 1, last - 1
        yield f"{size} NUL before a record", whole[:middle] + nul + whole[middle:], -1, -1
        yield f"{size} NUL as a line", whole[:middle] + nul + b"\n" + whole[middle:], -1, -1
        yield f"{size} NUL over records", whole[:middle] + nul[: end - middle] + whole[middle + size :], 2, -1
    yield "a record of another session at the end", whole + sample.foreign, last, last
    yield "a record of another session in the middle", whole[:middle] + sample.foreign + whole[middle:], -1, -1
    yield "another session's record instead of the last", whole[:end] + sample.foreign, last - 1, last - 1
    yield "CRLF everywhere", whole.replace(b"\n", b"\r\n"), -1, -1
    yield "CRLF behind the header", sample.lines[0] + whole[sample.start_of(0) :].replace(b"\n", b"\r\n"), 0, 0
    yield "CRLF at the end", whole[:-1] + b"\r\n", last - 1, last - 1
    yield "CRLF in the middle", whole[: middle - 1] + b"\r\n" + whole[middle:], -1, -1
    yield "CR only", whole.replace(b"\n", b"\r"), -1, -1
    yield "a newline lost in the middle", whole[: middle - 1] + whole[middle:], -1, -1
    yield "the last newline lost", whole[:-1], last - 1, last - 1
    yield "the newline before the last record lost", whole[: end - 1] + whole[end:], last - 2, last - 2
    yield "the header's newline lost", sample.lines[0][:-1] + whole[sample.start_of(0) :], -1, -1
    yield "an empty line in the middle", whole[:middle] + b"\n" + whole[middle:], -1, -1
    yield "a byte order mark", b"\xef\xbb\xbf" + whole, -1, -1
    yield "half the file twice", whole + whole[middle:], -1, -1
    yield "nothing", b"", -1, -1
    yield "no header", whole[sample.start_of(0) :], -1, -1


async def test_what_comes_between_records_is_refused_or_the_tail(sample: Sample) -> None:
    for what, damaged, most, least in insertions(sample):
        read, why = await sample.judge(damaged, what)
        assert least <= read <= most, f"{what}: {read}, {why}"
        if read >= 0:
            await sample.goes_on(damaged, read, what)


async def test_line_ends_that_were_converted_are_told_as_that(sample: Sample) -> None:
    one = b"".join([*sample.lines[:3], sample.lines[3][:-1], b"\r\n", *sample.lines[4:]])
    for damaged in (sample.bytes.replace(b"\n", b"\r\n"), one):
        read, why = await sample.judge(damaged, "CRLF")
        assert read == -1
        assert "CRLF" in why


def another_epoch(change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def changed(line: bytes) -> bytes:
        head, rest = line.rstrip(b"\n")[16:].split(b'"s",', 1)
        epoch, rest = rest.split(b",", 1)
        return seal(b'%b"s",%d,%b' % (head, change(int(epoch)), rest))

    return changed


@pytest.mark.parametrize("tail", [True, False])
async def test_a_record_of_an_older_owner_is_corruption_wherever_it_is(sample: Sample, tail: bool) -> None:
    """Its checksum is good: no crash leaves that, only a second owner does."""
    older = another_epoch(lambda epoch: epoch - 1)
    newer = another_epoch(lambda epoch: epoch + 1)
    last = len(GROUPS)
    assert (await sample.judge(b"".join([*sample.lines[:-1], newer(sample.lines[-1])]), "newer"))[0] == last
    place = last if tail else 3
    damaged = b"".join([*sample.lines[:place], older(sample.lines[place]), *sample.lines[place + 1 :]])
    read, why = await sample.judge(damaged, "older")
    assert (read, "two owners wrote" in why) == (-1, True), why
