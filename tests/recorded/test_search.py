"""Claim: the recorded session is searched alike on every store, by index and by reading."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentlane.data import codec
from agentlane.data.entries import kind_of
from agentlane.data.search import checked_search, text_of
from agentlane.data.words import words_of
from agentlane.data.writes import InsertEntry
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.storage.contract import Store
from agentlane.testing.clock import ManualClock
from agentlane.testing.conformance.model import ReferenceSession
from agentlane.testing.conformance.searching import reference
from tests.recorded.loader import recorded_session

SAMPLES = 12


async def test_the_recorded_session_is_searched_alike_everywhere(tmp_path: Path) -> None:
    messages, model, clock = recorded_session(), ReferenceSession(), ManualClock()
    stores: list[Store] = [
        MemoryStore(clock=clock),
        JsonlStore(tmp_path / "j", durability="process", clock=clock),
        SqliteStore(tmp_path / "s.db", durability="process", clock=clock),
    ]
    writes = [
        InsertEntry(f"m{number:05}", f"m{number - 1:05}" if number else None, kind_of(body), codec.encode(body))
        for number, body in enumerate(messages)
    ]
    for store in stores:
        await store.create("s")
        storage = await store.open("s")
        commit = await storage.submit(writes)
        await storage.close()
    model.commit(writes, commit)
    counts = Counter(word for write in writes for word in {*words_of(text_of(write.payload))})
    by_count = [word for word, _ in counts.most_common()]
    words = [by_count[len(by_count) * number // SAMPLES] for number in range(SAMPLES)]

    for text, branch_start, types in [
        *((word, None, None) for word in words),
        (" ".join(words[:2]), None, None),
        (" ".join(by_count[:3]), writes[len(writes) // 2].id, ("assistant",)),
    ]:
        search = checked_search(text, types=types, since=None, until=None, limit=50)
        want = reference(model, search, branch_start)
        assert want, text
        for store in stores:
            storage = await store.open("s")
            assert await storage.search(search, start=branch_start) == want, (text, store)
            await storage.close()
    answers = [await store.search(by_count[0], limit=30) for store in stores]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 30
    assert list(answers[2]) == list(await stores[2].search(by_count[0], limit=30, scan=True))
    assert all(hit.marks and hit.snippet for hit in answers[0])
    for store in stores:
        await store.close()
