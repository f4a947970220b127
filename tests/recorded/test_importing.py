"""Claim: the recorded session is imported whole on every store, and what a model is shown is sound at each cut."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import AssistantMessage, Custom, Entry, Message, open_session, read_history
from agentlane.machine.context import ModelContext
from agentlane.machine.pairing import pairing_problem
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore, Store
from agentlane.testing import check_invariants, check_pairing
from tests.recorded.loader import VARIABLE, recorded_session


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(os.environ[VARIABLE]).read_text(encoding="utf-8").split("\n") if line]


def store_at(kind: str, folder: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "jsonl":
        return JsonlStore(folder / "sessions", durability="process")
    return SqliteStore(folder / "s.db", durability="process")


@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
async def test_the_whole_session_is_imported(kind: str, tmp_path: Path) -> None:
    conversation, given = recorded_session(), rows()
    store = store_at(kind, tmp_path)
    async with open_session(store) as session:
        report = await session.import_messages("old", given, format="recorded")
    async with open_session(store) as session:
        entries = await session.branch("old").entries(newest_first=False)
        assert await check_invariants(session) == []
        looked = await session.verify()
        assert looked.findings == () and looked.entries == len(entries)
    await store.close()

    messages = [entry.body for entry in entries if isinstance(entry.body, Message)]
    assert [replace(each, sent_at=None) for each in messages] == list(conversation)
    said = [row["message"]["timestamp"] for row in given if row["type"] == "message"]
    assert [each.sent_at for each in messages] == said
    assert (report.messages, report.entries, report.tip) == (len(given), len(entries), entries[-1].id)
    assert set(Counter(each.code for each in report.repairs)) == {"empty_message", "bad_arguments"}
    kept = {(item["index"], item["path"]) for entry in entries for item in _kept(entry)}
    assert {index for index, row in enumerate(given) if row["type"] != "message"} <= {index for index, _ in kept}


def test_each_cut_of_it_is_sound() -> None:
    """As it is written, not only as a model is shown it: calls have their results, and no request repairs anything."""
    recorded_session()
    bodies = read_history(rows(), format="recorded").bodies

    context = ModelContext()
    for number, body in enumerate(bodies):
        context.add(str(number), body)
        if isinstance(body, Message) and len(context.view()):
            assert pairing_problem(context.view()) is None, number
    sent = [each for each in bodies if isinstance(each, Message) and each.content and not is_failed(each)]
    assert check_pairing(sent) == []
    assert list(context.view()) == sent


def is_failed(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.stop_reason in ("error", "aborted")


def _kept(entry: Entry) -> list[dict[str, Any]]:
    return list(entry.body.data["kept"]) if isinstance(entry.body, Custom) else []
