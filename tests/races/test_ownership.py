"""Claim: of two processes that fight for a session one owns it at a time, and what each was told is there, once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentlane import open_session
from agentlane.data.messages import TextPart, ToolResultMessage, UserMessage
from agentlane.testing.invariants import check_invariants
from tests.races import contender
from tests.races.contender import DIED, LOG, dies, store_at

TURNS, TURNS_WHOLE = 2, 30


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_two_processes_fight_for_a_session(kind: str, tmp_path: Path, whole: bool) -> None:
    """R75: they take turns, some of which end by death; nothing is lost, doubled, or run by both."""
    turns = TURNS_WHOLE if whole else TURNS
    place = str(tmp_path / ("sessions" if kind == "jsonl" else "sessions.db"))
    effects, witness = tmp_path / "effects", tmp_path / "witness"
    effects.touch()

    async def begin() -> None:
        store = store_at(kind, place)
        await store.create("s")
        await store.close()

    asyncio.run(begin())
    said = fight(kind, place, turns, effects, witness)
    wrote = {line.split()[1]: int(line.split()[2]) for line in said if line.startswith("wrote ")}
    ran = {line.split()[1] for line in said if line.startswith("ran ")}
    labels = {f"{name}-{number}" for name in "ab" for number in range(turns)}
    assert set(wrote) == labels
    assert ran == {label for label in labels if not dies(int(label.split("-")[1]))}

    async def look() -> None:
        store = store_at(kind, place)
        async with open_session(store, session_id="s", read_only=True) as session:
            assert {text: seq for seq, text in await session.elements(LOG)} == wrote
            assert len(await session.elements(LOG)) == len(labels)
            assert await check_invariants(session) == []
            messages = await session.branch("main").messages()
            prompts = [text_of(each) for each in messages if isinstance(each, UserMessage)]
            assert Counter(prompts) == Counter(labels)
            started = Counter(effects.read_text().split())
            assert set(started.values()) == {1}, "a call that may not start twice did"
            assert len(started) == len(labels)
            results = [each for each in messages if isinstance(each, ToolResultMessage)]
            assert sum(each.text.startswith("done ") for each in results) == len(ran)
        await store.close()

    asyncio.run(look())


def text_of(message: UserMessage) -> str:
    (part,) = message.content
    assert isinstance(part, TextPart)
    return part.text


def fight(kind: str, place: str, turns: int, effects: Path, witness: Path) -> list[str]:
    """Let both processes have their turns, each from a thread of its own; what they said."""

    def attend(name: str) -> list[str]:
        """One that died is started anew with the turns that are left."""
        said: list[str] = []
        first = 0
        while first < turns:
            arguments = [kind, place, name, str(first), str(turns), str(effects), str(witness)]
            done = subprocess.run([sys.executable, contender.__file__, *arguments], capture_output=True, text=True)
            assert done.returncode in (0, DIED), done.stderr
            said += done.stdout.splitlines()
            if done.returncode == 0:
                break
            first = 1 + max(int(line.split()[1].split("-")[1]) for line in said if line.startswith("wrote "))
        return said

    with ThreadPoolExecutor(2) as both:
        return [line for said in both.map(attend, "ab") for line in said]
