"""Claim: a session file of each format is written as it always was, byte for byte, and read for ever.

The files in ``golden_files`` are frozen, and only ever added to: a change of format is a new file beside the old ones.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, DeleteValue, InsertEntry, InsertUsage, SetValue
from agentlane.storage import JsonlStore
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, ValueRow
from agentlane.testing import CountingIds, ManualClock

GOLDEN = Path(__file__).parent / "golden_files"
ID = "01890a5d-ac96-774b-bcce-b302099a%04x"
META = b'{"lane":"main","started_at":1700000000500}'
AT = 1_700_000_000_000
ROWS: list[Row] = [
    EntryRow(ID % 0, None, 1, AT, "user", b'{"role":"user","content":[]}'),
    EntryRow(ID % 1, ID % 0, 2, AT, "assistant", b'{"role":"assistant","content":[]}'),
    EntryRow(ID % 2, ID % 0, 7, AT + 5, "custom", '{"type":"note","data":"é  "}'.encode()),
    LedgerRow(3, AT, UsageRow(id=ID % 3, kind="attempt", usage=Usage(input_tokens=12, output_tokens=3))),
    ElementRow(Address("app.test", "list"), 4, b"1"),
    ElementRow(Address("app.test", "list"), 8, b"2"),
    ValueRow(Address("branch.tip", "main"), f'"{ID % 2}"'.encode()),
    ValueRow(Address("op.meta", "op-1"), META),
]


async def pages() -> AsyncIterator[Sequence[Row]]:
    yield ROWS


async def loaded(folder: Path) -> JsonlStore:
    """A folder with ``based.jsonl``, made of the rows, and one commit behind them."""
    clock = ManualClock(start_ms=AT + 10)
    store = JsonlStore(folder, durability="process", clock=clock, ids=CountingIds())
    await store.load(pages(), last_seq=9, session_id="based", metadata={"title": "Based"}, created_at=AT)
    storage = await store.open("based")
    await storage.submit(
        [
            InsertEntry(ID % 4, ID % 2, "user", b'{"role":"user","content":[]}'),
            InsertUsage(UsageRow(id=ID % 5, kind="adjustment", usage=Usage(cost_nanos=7))),
            AppendElement(Address("app.test", "list"), b"3"),
            SetValue(Address("branch.tip", "main"), f'"{ID % 4}"'.encode()),
        ]
    )
    await storage.submit([DeleteValue(Address("op.meta", "op-1"))])
    await storage.close()
    return store


async def test_a_file_with_a_base_is_written_as_it_always_was(tmp_path: Path) -> None:
    store = await loaded(tmp_path)
    await store.close()

    assert (tmp_path / "based.jsonl").read_bytes() == (GOLDEN / "based.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["based"])
async def test_a_file_of_any_time_is_read(tmp_path: Path, name: str) -> None:
    shutil.copy(GOLDEN / f"{name}.jsonl", tmp_path)
    store = JsonlStore(tmp_path, durability="process")
    storage = await store.open(name, read_only=True)

    assert (await storage.scan())[:3] == [row for row in ROWS if isinstance(row, EntryRow)]
    assert [row.seq for row in await storage.scan()] == [1, 2, 7, 10]
    assert [(row.seq, row.at) for row in await storage.usage()] == [(3, AT), (11, AT + 10)]
    elements = await storage.elements(Address("app.test", "list"))
    assert [(each.seq, each.payload) for each in elements] == [(4, b"1"), (8, b"2"), (12, b"3")]
    assert await storage.values("op.meta") == {} and storage.epoch == 2
    assert storage.stats().usage.cost_nanos == 7
    await store.close()
