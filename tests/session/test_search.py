"""Claim: a session is searched for what a person remembers of it, on every backend with the same hits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Custom, Prompt, SearchHit, Session, TextPart, UserMessage, ValueAddress
from agentlane.errors import InvalidMessage, SessionClosed, UnknownBranch, UnknownSession
from agentlane.testing.conformance.searching import ODD_TEXTS
from tests.session.places import Place, agent_of


async def talked(place: Place) -> Session:
    """A talk of two turns on ``main``, one more turn on ``side``, which parts after the first, and a note."""
    session = await place.open()
    main = await session.lane("main", agent_of("The build folder is clean.", "Tests are green, build is red."))
    await main.run(Prompt("please clean the build folder"))
    place.clock.advance(100)
    await session.create_branch("side", at=main.tip())
    await main.run(Prompt("and the tests?"))
    place.clock.advance(100)
    side = await session.lane("side", agent_of("not asked for", "Build, build, build!"))
    await side.run(Prompt("say it thrice"))
    await side.append_custom("ui.note", {"title": "Build notes", "n": 3})
    await session.create_branch("empty")
    return session


def said(hits: list[SearchHit]) -> list[str]:
    return [hit.snippet for hit in hits]


async def test_what_was_said_is_found_best_first(place: Place) -> None:
    session = await talked(place)

    hits = await session.search("build")

    assert said(hits) == [
        "Build, build, build!",
        "Build notes",
        "The build folder is clean.",
        "please clean the build folder",
        "Tests are green, build is red.",
    ]
    best = hits[0]
    assert (best.session_id, best.type, best.role, best.marks) == (
        *(session.id, "message", "assistant"),
        ((0, 5), (7, 12), (14, 19)),
    )
    assert best.score == pytest.approx(300 / 353, abs=1e-5)
    entry = await session.entry(best.entry_id)
    assert entry.at == best.at and "thrice" not in repr(entry.body)
    note = await session.entry(hits[1].entry_id)
    assert isinstance(note.body, Custom) and (hits[1].type, hits[1].role) == ("custom", None)


async def test_branch_type_and_time_come_before_the_limit(place: Place) -> None:
    session = await talked(place)
    times = [entry.at for entry in await session.entries()]

    assert said(await session.search("build", branch="main", limit=1)) == ["The build folder is clean."]
    assert said(await session.search("build", branch="main", types=["user"], limit=1)) == [
        "please clean the build folder"
    ]
    assert said(await session.search("build", types=["custom"])) == ["Build notes"]
    assert said(await session.search("build", until=times[0] + 100, limit=2)) == [
        "The build folder is clean.",
        "please clean the build folder",
    ]
    assert said(await session.search("build", since=times[0] + 100, until=times[0] + 200)) == [
        "Tests are green, build is red."
    ]
    assert await session.search("thrice", branch="main") == []
    assert await session.search("build", branch="empty") == [] == await session.search("build", types=[])
    assert await session.search("build", limit=0) == []


@pytest.mark.parametrize("scan", [False, True])
async def test_every_word_must_be_there_and_the_last_may_be_begun(place: Place, scan: bool) -> None:
    session = await talked(place)

    assert said(await session.search("FOLDER, Clean?", scan=scan)) == [
        "The build folder is clean.",
        "please clean the build folder",
    ]
    assert await session.search("fold", scan=scan) == []
    assert len(await session.search("clean fold", prefix=True, scan=scan)) == 2
    assert await session.search("cle folder", prefix=True, scan=scan) == []
    for text in ODD_TEXTS:
        await session.search(text, scan=scan)
        await session.search(text, scan=scan, prefix=True)


async def test_searched_while_a_run_is_open_and_after_each_reopening(place: Place) -> None:
    session = await talked(place)
    await session.search("build")
    main = await session.lane("main", agent_of(*["never asked"] * 3))
    await main.accept(Prompt("a new build"))

    assert said(await session.search("new")) == ["a new build"]
    await session.close()
    session = await place.open()
    assert said(await session.search("new")) == ["a new build"]
    reader = await place.open(read_only=True)
    assert said(await reader.search("new build")) == ["a new build"]
    await (await session.lane("main", agent_of())).request_abort(session.open_operations()[0].operation_id)
    await session.branch("side").append_custom("ui.note", "new things")
    assert said(await reader.search("new")) == ["a new build"]
    assert said(await session.search("new")) == ["new things", "a new build"]


async def test_a_store_is_searched_across_its_sessions(place: Place) -> None:
    session = await talked(place)

    hits = await place.store.search("build")

    assert list(hits) == await session.search("build")
    assert list(await place.store.search("build", branch="side", session_id=session.id)) == await session.search(
        "build", branch="side"
    )
    assert list(await place.store.search("build", branch="nowhere")) == []
    with pytest.raises(UnknownSession):
        await place.store.search("build", session_id="nobody")


@pytest.mark.parametrize(
    "options",
    [{"limit": 1001}, {"limit": None}, {"types": "user"}, {"types": ["x"]}, {"since": 1.0}, {"prefix": None}],
    ids=str,
)
async def test_what_is_no_search_is_refused(place: Place, options: dict[str, Any]) -> None:
    session = await place.open()
    for text, more in (("build", options), (7, {})):
        with pytest.raises(InvalidMessage):
            await session.search(text, **more)  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage):
            await place.store.search(text, **more)  # type: ignore[arg-type]


async def test_no_branch_and_no_session_is_said_so(place: Place) -> None:
    session = await talked(place)
    with pytest.raises(UnknownBranch):
        await session.search("build", branch="nowhere")
    await session.close()
    with pytest.raises(SessionClosed):
        await session.search("build")


async def test_a_file_that_is_cleaned_up_beside_a_search_is_searched_rightly(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("main")
    plan = ValueAddress("app.test", "plan", str)
    for number in range(300):
        await session.set_value(plan, "x" * 2_000)
        await branch.append_message(UserMessage(content=(TextPart(text=f"a red fox {number}"),)))

    searching = [asyncio.ensure_future(session.search(f"fox {number}")) for number in (0, 150, 299)]
    await asyncio.sleep(0)
    await session.compact_storage()

    assert [said(hits) for hits in await asyncio.gather(*searching)] == [[f"a red fox {n}"] for n in (0, 150, 299)]
    assert said(await session.search("fox 7")) == ["a red fox 7"]
