"""Claim: every operation of a session, open or settled, is found once, in the order of ids, a page at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import InvalidMessage, Prompt, Session
from agentlane.driver import past
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import fail
from tests.session.places import Place, agent_of


async def filled(place: Place) -> Session:
    """Operations a0 to a6: a1 failed, a2 aborted, a4 open on lane main, a5 on another; one below and one above all."""
    session = await place.open()
    model = ScriptedModel(turns=[["one"], [fail("no")], ["not asked"], ["four"], ["five"]])
    lane = await session.lane("main", agent_of(model=model))
    other = await session.lane("other", agent_of("done", "done", "done"))
    third = await session.lane("third", agent_of("done"))
    for id in ("a0", "a1"):
        await lane.run("go", operation_id=id)
    await lane.accept(Prompt("go"), operation_id="a2")
    await lane.abort()
    await lane.run("go", operation_id="a3")
    await lane.accept(Prompt("go"), operation_id="a4")
    await other.run("go", operation_id="a6")
    await other.accept(Prompt("go"), operation_id="a5")
    await third.accept(Prompt("go"), operation_id="A")
    last = await session.lane("last", agent_of("done"))
    await last.accept(Prompt("go"), operation_id="b")
    return session


WHOLE = [
    ("A", "third", "open"),
    ("a0", "main", "completed"),
    ("a1", "main", "failed"),
    ("a2", "main", "aborted"),
    ("a3", "main", "completed"),
    ("a4", "main", "open"),
    ("a5", "other", "open"),
    ("a6", "other", "completed"),
    ("b", "last", "open"),
]


async def found(session: Session, **options: Any) -> list[tuple[str, str, str]]:
    return [(each.operation_id, each.lane, each.status) for each in await session.operations(**options)]


@pytest.mark.parametrize("rows", [1, 2, 3, 256])
async def test_open_and_settled_ones_in_one_order(place: Place, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cursor, limit and filter, however many rows are read at once, also by a reader."""
    monkeypatch.setattr(past, "PAGE", rows)
    session = await filled(place)
    assert await found(session) == WHOLE
    for after in (None, "", *(id for id, _, _ in WHOLE), "a25", "zzz"):
        for limit in (None, 0, 1, 3, 8, 9):
            for status in (None, "open", "completed", "failed", "aborted"):
                for lane in (None, "main", "nowhere"):
                    wanted = [
                        each
                        for each in WHOLE
                        if each[0] > (after or "") and status in (None, each[2]) and lane in (None, each[1])
                    ]
                    got = await found(session, after=after, limit=limit, status=status, lane=lane)
                    assert got == wanted[:limit], (after, limit, status, lane)
    if place.kind != "memory":
        reader = await place.open(read_only=True)
        lane = await session.lane("main", agent_of("x", "x", "x", "x", "x"))
        await lane.resume()
        assert await found(reader) == WHOLE
        assert await found(reader, limit=2, after="a3") == WHOLE[5:7]


async def test_a_settled_one_has_its_record(place: Place) -> None:
    session = await filled(place)
    by_id = {each.operation_id: each for each in await session.operations()}

    lane = await session.lane("main", agent_of("x"))
    assert by_id["a0"].result == await lane.result("a0")
    assert (by_id["a0"].at, by_id["a0"].turn, by_id["a4"].result, by_id["a4"].at) == (None, 1, None, "checkpoint")
    assert by_id["a0"].started_at == by_id["a0"].result.started_at  # type: ignore[union-attr]


async def test_one_that_settles_meanwhile_is_there_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two reads comes first."""
    monkeypatch.setattr(past, "PAGE", 2)
    session = await filled(place)
    for name in ("third", "other", "main", "last"):
        lane = await session.lane(name, agent_of(*["x"] * 9))
        looking = asyncio.ensure_future(session.operations())
        await asyncio.sleep(0)
        settling = asyncio.ensure_future(lane.resume())
        assert [each.operation_id for each in await looking] == [id for id, _, _ in WHOLE]
        await settling
    assert {each[2] for each in await found(session)} == {"completed", "failed", "aborted"}


async def test_what_is_no_page_is_refused(place: Place) -> None:
    session = await place.open()
    bad: list[dict[str, Any]] = [{"status": "done"}, {"limit": -1}, {"limit": True}, {"after": 7}, {"after": "\ud800"}]
    for options in bad:
        with pytest.raises(InvalidMessage):
            await session.operations(**options)
    assert await session.operations() == []


async def test_ids_of_the_library_make_it_the_order_of_time(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(*[str(number) for number in range(5)]))
    for number in range(5):
        await lane.run(str(number))

    assert [each.result.text for each in await session.operations() if each.result] == ["0", "1", "2", "3", "4"]
