"""Claim: whatever is wrong with a JSONL file, ``verify`` names it by kind and place, and what can be read of it is what
a reader gets who takes every whole record; the folder is left as it is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentlane.data.findings import FINDINGS_MAX, VerifyReport
from agentlane.data.writes import Address, SetValue
from agentlane.errors import CorruptSession, UnknownSession, UnsupportedFormat
from agentlane.storage.contract import Row, ValueRow
from agentlane.storage.framing import seal
from agentlane.testing.clock import ManualClock
from tests.storage.test_jsonl_bytes import GROUPS, Sample, another_epoch, insertions
from tests.storage.verified import counted, left_alone, rows_of, rows_without

LAST = len(GROUPS)
AT = ManualClock().now_ms()


@pytest.fixture
async def sample(tmp_path: Path) -> Sample:
    return await Sample(tmp_path, "process").make()


async def look(sample: Sample, damaged: bytes) -> tuple[VerifyReport, list[Row]]:
    sample.path.write_bytes(damaged)
    store = sample.store()
    with left_alone(sample.folder):
        report = await store.verify("s")
        rows = await rows_of(await store.salvage("s"))
    kinds = [type(row).__name__ for row in rows]
    assert counted(report) == tuple(kinds.count(each) for each in ("EntryRow", "LedgerRow", "ElementRow", "ValueRow"))
    await store.close()
    return report, rows


def without(*lost: int) -> list[Row]:
    return rows_without(GROUPS, set(lost), at=AT)


def codes(report: VerifyReport) -> list[str]:
    return [each.code for each in report.findings]


async def test_a_good_file_has_no_findings_and_all_its_rows(sample: Sample) -> None:
    report, rows = await look(sample, sample.bytes)

    assert report.findings == () and report.more == 0
    assert rows == without()
    assert report.last_seq == sum(map(len, GROUPS))


async def test_a_cut_is_a_torn_tail_that_loses_nothing(sample: Sample) -> None:
    for commit in range(LAST):
        start = sample.start_of(commit)
        report, rows = await look(sample, sample.bytes[: start + 30])
        (found,) = report.findings
        assert (found.code, found.loses) == ("torn_tail", False)
        assert found.place == f"s.jsonl: line {commit + 2} (byte {start})"
        assert "incomplete" in found.text
        assert rows == without(*range(commit, LAST))


async def test_each_flipped_byte_is_named_by_its_line(sample: Sample, whole: bool) -> None:
    for place in range(0, len(sample.bytes), 43 if whole else 211):
        damaged = bytearray(sample.bytes)
        damaged[place] ^= 1 << place % 8
        report, rows = await look(sample, bytes(damaged))
        line = max(each for each in range(LAST + 1) if each == 0 or sample.start_of(each - 1) <= place)
        at = sample.start_of(line - 1) if line else 0
        first = report.findings[0]
        assert first.place.startswith(f"s.jsonl: line {line + 1} (byte {at})"), (place, report)
        if line == 0:
            assert first.code == "bad_header" and first.loses, (place, report)
            if damaged[place] != ord("\n") and place != at + len(sample.lines[0]) - 1:
                assert rows == without(), place
        elif line == LAST:
            assert first.code == "torn_tail", (place, report)
            assert rows == without(LAST - 1), place
        elif place == sample.start_of(line) - 1:  # its newline: both records can be told apart
            assert (first.code, first.loses) == ("bad_record", True), (place, report)
        else:
            assert (first.code, first.loses) in [("bad_record", True), ("nul_bytes", True)], (place, report)
            assert f"sequence numbers {1 + sum(map(len, GROUPS[: line - 1]))} to" in first.text
            assert rows == without(line - 1), place


def named(sample: Sample) -> dict[str, tuple[list[str], set[int] | None]]:
    """What each of the damages is called, and which commits cannot be read (None: not said here)."""
    all_ = set(range(LAST))
    last = {LAST - 1}
    tail = (["torn_tail"], set[int]())
    found: dict[str, tuple[list[str], set[int] | None]] = {}
    for size in (1, 4096, 300_000):
        found |= {
            f"{size} NUL at the end": tail,
            f"{size} NUL instead of the last record": (["torn_tail"], last),
            f"{size} NUL over the last record's end": (["torn_tail"], last),
            f"{size} NUL before a record": (["nul_bytes"], set()),
            f"{size} NUL as a line": (["nul_bytes"], set()),
            f"{size} NUL over records": (["nul_bytes", "missing_parent"] if size == 1 else ["torn_tail"], None),
        }
    return found | {
        "a record of another session at the end": tail,
        "a record of another session in the middle": (["foreign_record"], set()),
        "another session's record instead of the last": (["torn_tail"], last),
        "CRLF everywhere": (["crlf"], set()),
        "CRLF behind the header": (["torn_tail"], all_),
        "CRLF at the end": (["torn_tail"], last),
        "CRLF in the middle": (["crlf"], set()),
        "CR only": (["bad_header"], set()),
        "a newline lost in the middle": (["bad_record"], set()),
        "the last newline lost": (["torn_tail"], last),
        "the newline before the last record lost": (["torn_tail"], {LAST - 2, LAST - 1}),
        "the header's newline lost": (["bad_header"], set()),
        "an empty line in the middle": (["empty_line"], set()),
        "a byte order mark": (["bad_header"], set()),
        "half the file twice": (["repeated_record"], set()),
        "nothing": (["not_a_session"], all_),
        "no header": (["bad_header"], set()),
    }


async def test_each_kind_of_damage_has_a_name(sample: Sample) -> None:
    want = named(sample)
    seen = set()
    for what, damaged, *_ in insertions(sample):
        report, rows = await look(sample, damaged)
        seen.add(what)
        names, lost = want[what]
        assert codes(report) == names, (what, report)
        if lost is not None:
            assert rows == without(*lost), (what, report)
            assert bool(report.losses) == (what in ("nothing", "no header")), (what, report)
    assert seen == set(want)


def elsewhere(line: bytes) -> bytes:
    """The record, which names the place of the one that says what is open, with another place."""
    head, rest = line[16:-1].split(b'"s",1,', 1)
    place, rest = re.split(rb"(?=[,\]])", rest, maxsplit=1)
    return seal(b'%b"s",1,%d%b' % (head, int(place) + 7, rest))


async def test_records_that_do_not_fit_are_named(sample: Sample) -> None:
    lines = sample.lines
    older = another_epoch(lambda epoch: epoch - 1)
    other = seal(lines[-1][16:-1].replace(b'"o2"', b'"o3"'))
    head, line, rest = lines[:2], lines[2], lines[3:]
    cases: list[tuple[list[bytes], list[tuple[str, int, bool]], set[int]]] = [
        ([*head, line, older(rest[0]), *rest[1:]], [("epoch_order", 4, False)], set()),
        ([*head, *rest], [("missing_numbers", 3, True)], {1}),
        ([*lines, line], [("repeated_record", LAST + 2, False)], set()),
        ([*lines, other], [("number_again", LAST + 2, True)], set()),
        ([*head, lines[0], line, *rest], [("repeated_record", 3, False)], set()),
        ([*lines[:4], elsewhere(lines[4]), *lines[5:]], [("open_operations", 5, False)], set()),
        ([lines[0], lines[-1], *lines[1:-1]], [("out_of_order", 2, False)], set()),
        ([*head, *rest, line], [("out_of_order", LAST + 1, False)], set()),
        ([lines[0], line, lines[1], *rest], [("out_of_order", 2, False)], set()),
        ([lines[0], rest[0], *lines[1:]], [("repeated_record", 2, False)], set()),
        ([lines[0], *rest, *lines[1:3]], [("out_of_order", LAST, False), ("out_of_order", LAST + 1, False)], set()),
        ([*head, b"not JSON\n", b"nor this\n", line, *rest], [("bad_record", 3, False)], set()),
        ([*head, seal(b'"c":not JSON'), *rest], [("newer_format", 3, True)], {1}),
        ([*head, seal(line[16:-2] + b',"z":1}'), *rest], [("newer_format", 3, True)], {1}),
        ([*head, seal(line[16:-3] + b"0]}"), *rest], [("bad_record", 3, True)], {1}),
        ([*head, seal(line[16:-1].replace(b'"w":[', b'"w":[?')), *rest], [("bad_record", 3, True)], {1}),
    ]
    for damaged, want, lost in cases:
        report, rows = await look(sample, b"".join(damaged))
        found = [(each.code, int(each.place.split("line ")[1].split()[0]), each.loses) for each in report.findings]
        assert found == want, report
        assert rows == without(*lost), report
    report, _ = await look(sample, b"".join([*head, *rest]))
    first = 1 + len(GROUPS[0])
    assert f"sequence numbers {first} to {first + len(GROUPS[1]) - 1} are missing" in report.findings[0].text


async def test_what_is_refused_has_findings_and_what_opens_has_none_but_tails(sample: Sample) -> None:
    for what, damaged, _, _ in insertions(sample):
        report, _ = await look(sample, damaged)
        store = sample.store()
        try:
            storage = await store.open("s", read_only=True)
        except (CorruptSession, UnsupportedFormat):
            assert report.findings and report.findings[0].code != "torn_tail", what
        else:
            assert codes(report) == ["torn_tail"] * len(storage.findings), what
        await store.close()


async def test_a_file_of_another_session_or_a_newer_format(sample: Sample) -> None:
    (sample.folder / "s.jsonl").write_bytes((sample.folder / "t.jsonl").read_bytes())
    report, rows = await look(sample, sample.path.read_bytes())
    assert codes(report) == ["renamed"] and not report.losses
    assert "rename it to t.jsonl" in report.findings[0].advice and rows == without()
    header = (sample.folder / "t.jsonl").read_bytes().splitlines(keepends=True)[0]
    report, rows = await look(sample, b"".join([header, *sample.lines[1:]]))
    assert codes(report) == ["bad_header"] and report.losses and rows == without()
    newer = seal(sample.lines[0][16:-1].replace(b'"agentlane":1', b'"agentlane":3'))
    report, rows = await look(sample, b"".join([newer, *sample.lines[1:]]))
    assert codes(report) == ["newer_format"] and not report.losses and rows == []
    assert "format 3" in report.findings[0].text
    with pytest.raises(UnknownSession):
        await sample.store().verify("nobody")


async def test_what_lies_beside_a_file_is_told_and_loses_nothing(sample: Sample) -> None:
    (sample.folder / "s.jsonl.torn-1").write_bytes(b"tail")
    (sample.folder / ".s.jsonl.new").write_bytes(b"half")
    report, rows = await look(sample, sample.bytes)
    assert [(each.code, each.place) for each in report.findings] == [
        ("set_aside", "s.jsonl.torn-1"),
        ("leftover", ".s.jsonl.new"),
    ]
    assert not report.losses and rows == without()


async def test_a_line_that_an_owner_may_be_writing_is_no_torn_tail(sample: Sample) -> None:
    """An owner in this process, and one in another."""
    half = sample.bytes[:-10]
    store = sample.store()
    storage = await store.open("s")
    report, rows = await look(sample, half)
    assert codes(report) == ["being_written"] and not report.losses and rows == without(LAST - 1)
    storage.kill()
    report, _ = await look(sample, half)
    assert codes(report) == ["torn_tail"]
    holds = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", holds, f"{sample.path}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    try:
        owner.stdout.readline()
        report, _ = await look(sample, half)
        if os.path.exists("/proc/locks"):
            assert codes(report) == ["being_written"]
    finally:
        owner.communicate()


async def test_a_base_that_is_not_whole_is_named(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that a cleanup wrote, in lines of three writes."""
    monkeypatch.setattr("agentlane.storage.jsonl_base.LINE_FRAMES", 3)
    store = sample.store()
    storage = await store.open("s")
    await storage.compact()
    await storage.submit([SetValue(Address("app.other", "k"), b"1")])
    await store.close()
    lines = sample.path.read_bytes().splitlines(keepends=True)
    report, rows = await look(sample, b"".join(lines))
    assert report.findings == () and len(lines) > 5
    flipped = bytes([*lines[2][:-30], lines[2][-30] ^ 1, *lines[2][-29:]])
    cases: list[tuple[list[bytes], list[tuple[str, int]]]] = [
        ([*lines[:2], *lines[3:]], [("missing_numbers", 3), ("missing_parent", 3)]),
        ([*lines[:2], flipped, *lines[3:]], [("bad_record", 3), ("missing_parent", 4)]),
        ([*lines[:3], lines[2], *lines[3:]], [("repeated_record", 4)]),
        ([*lines[:-2], lines[-1]], [("bad_base", len(lines) - 1)]),
        ([*lines, lines[2]], [("repeated_record", len(lines) + 1)]),
    ]
    for damaged, want in cases:
        report, found = await look(sample, b"".join(damaged))
        seen = [(each.code, int(each.place.split("line ")[1].split()[0])) for each in report.findings]
        assert seen == want, report
        assert (found == rows) == (want[0][0] == "repeated_record"), want
        assert ValueRow(Address("app.other", "k"), b"1") in found
    report, found = await look(sample, b"".join(lines[:-2]))
    assert codes(report) == ["bad_base"] and report.losses and 0 < len(found) < len(rows)


async def test_findings_are_bounded_and_counted(sample: Sample) -> None:
    """Lines that are bad one by one are many findings; those that are bad alike, one after the other, are one."""
    damaged = [sample.lines[0]]
    for number in range(1200):
        damaged += [b"damaged\n", sample.lines[1], b"\n", b"\0\n"] if number else [sample.lines[1]]
    report, rows = await look(sample, b"".join([*damaged, sample.lines[2]]))
    assert len(report.findings) == FINDINGS_MAX and report.more == 4 * 1199 - FINDINGS_MAX
    assert rows == without(*range(2, LAST))
    report, _ = await look(sample, b"".join([*sample.lines[:2], *[b"damaged\n"] * 5000, *sample.lines[2:]]))
    (found,) = report.findings
    assert found.text.startswith("lines 3 to 5002: ")
