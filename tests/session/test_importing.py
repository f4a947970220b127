"""Claim: an imported history is on its branch whole or not at all, on every store, and conversations go on from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    AssistantMessage,
    Custom,
    Entry,
    InvalidMessage,
    InvalidName,
    LaneBusy,
    LaneSnapshot,
    PathMoved,
    Prompt,
    ReadOnlySession,
    Session,
    SessionFaulted,
    Stats,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    UserMessage,
    read_history,
)
from agentlane.data import addresses
from agentlane.data.messages import user
from agentlane.data.writes import SetValue
from agentlane.driver.importing import COMMIT_BYTES_MAX
from agentlane.ids import call_id
from agentlane.testing import (
    FailingStore,
    FaultPlan,
    GatedStore,
    ScriptedModel,
    Trace,
    check_invariants,
    check_trace,
    check_trace_against,
    hang,
)
from agentlane.testing.matrix.lives import bury
from tests.session.places import Place, agent_of

LONG = "x" * (COMMIT_BYTES_MAX // 2)
CALLS = [{"id": "a", "function": {"name": name, "arguments": "{}"}} for name in ("read", "write")]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": LONG},
    {"role": "tool", "tool_call_id": "z", "content": "nobody's"},
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": "done"},
]
"""Four commits long, with a call that has no result and a result that has no call."""

COMMITS = ["import_entries", "import_entries", "import"]


async def test_what_was_read_is_on_a_new_branch(place: Place) -> None:
    session = await place.open()

    report = await session.import_messages("old", CHAT, format="openai")

    history = read_history(CHAT, format="openai")
    entries = await session.branch("old").entries(newest_first=False)
    assert [entry.body for entry in entries] == list(history.bodies)
    assert (report.tip, report.entries, report.instructions) == (entries[-1].id, len(entries), "Be brief.")
    assert [(each.index, each.code) for each in report.repairs] == [
        *((2, "repeated_call_id"), (2, "missing_result"), (4, "orphan_result"))
    ]
    assert session.branches() == ["old"] and session.lanes() == []
    assert session.stats().usage.rows == 0
    results = [entry for entry in entries if isinstance(entry.body, ToolResultMessage)]
    answer = next(entry for entry in entries if isinstance(entry.body, AssistantMessage))
    assert [entry.id for entry in results] == [call_id(answer.id, 0), call_id(answer.id, 1)]
    assert await check_invariants(session) == []
    await session.close()
    session = await place.open()
    assert await session.branch("old").entries(newest_first=False) == entries


async def test_the_conversation_goes_on_from_it(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["and on"])
    report = await session.import_messages("old", CHAT, format="openai")

    lane = await session.lane("old", agent_of(model=model, instructions=report.instructions))
    result = await lane.run("go on")

    sent = model.requests[0].messages
    assert [type(each).__name__ for each in sent] == [
        *("UserMessage", "AssistantMessage", "ToolResultMessage", "ToolResultMessage"),
        *("UserMessage", "AssistantMessage", "UserMessage"),
    ]
    assert [each.call_id for each in sent if isinstance(each, ToolResultMessage)] == ["a", "a-2"]
    assert result.text == "and on"
    assert await check_invariants(session) == []


@pytest.mark.parametrize("loaded", [True, False])
async def test_it_goes_behind_what_is_there_and_ends_a_batch_that_is_open(place: Place, loaded: bool) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("more"))
    call = ToolCallPart(id="c", name="read", arguments={})
    await lane.append_message(user("first"))
    await lane.append_message(AssistantMessage(content=(call,), stop_reason="tool_calls"))
    if not loaded:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent_of("more"))

    await session.import_messages("main", [{"role": "user", "content": "second"}], format="openai")
    await lane.run("third")

    kinds = [type(each).__name__ for each in await lane.messages()]
    assert kinds == [
        *("UserMessage", "AssistantMessage", "ToolResultMessage", "UserMessage", "UserMessage", "AssistantMessage")
    ]
    assert await check_invariants(session) == []


async def test_usage_stays_in_the_answers_and_charges_nothing(place: Place) -> None:
    """What another program was charged is no charge of this session, however often it is imported."""
    session = await place.open()
    answer = {"role": "assistant", "content": "hi", "usage": {"input_tokens": 7, "output_tokens": 5}}

    for name in ("one", "two"):
        await session.import_messages(name, [{"role": "user", "content": "x"}, answer], format="anthropic")

    last = (await session.branch("two").messages())[-1]
    assert isinstance(last, AssistantMessage) and last.usage == Usage(input_tokens=7, output_tokens=5)
    assert session.stats() == Stats(entries=4) and await session.usage() == []
    assert await check_invariants(session) == []


async def test_nothing_to_import_makes_the_branch_and_no_entry(place: Place) -> None:
    session = await place.open()

    report = await session.import_messages("old", [], format="anthropic")

    assert (report.tip, report.entries) == (None, 0)
    assert session.branches() == ["old"] and session.branch("old").tip() is None
    trace = Trace()
    await session.close()
    place.store = trace.store(place.store)
    session = await place.open()
    await session.import_messages("old", iter([]), format="anthropic")
    assert [each for each in trace.events if getattr(each, "writes", None)] == []


async def test_what_cannot_be_imported_is_refused_and_nothing_is_written(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(hang()))
    await lane.accept(Prompt("x"), operation_id="op")
    before = session.stats(), session.branches()

    with pytest.raises(InvalidMessage, match=r"messages\[7\].role: text is needed"):
        await session.import_messages("old", [*CHAT, {}], format="openai")
    with pytest.raises(InvalidName):
        await session.import_messages("no name", CHAT, format="openai")
    with pytest.raises(InvalidName, match="child:"):
        await session.import_messages("child:x", CHAT, format="openai")
    with pytest.raises(LaneBusy, match="op"):
        await session.import_messages("main", CHAT, format="openai")

    assert (session.stats(), session.branches()) == before
    await lane.abort()
    await session.close()
    session = await place.open(read_only=True)
    with pytest.raises(ReadOnlySession):
        await session.import_messages("old", CHAT, format="openai")


# Killed.


async def test_a_kill_leaves_all_of_it_or_nothing_that_shows(place: Place) -> None:
    """At each part of each commit, to a new branch and behind an old one; done again it is there once."""
    recorded = FaultPlan()
    session = await place.open("recorded", probe=recorded)
    await session.create_branch("main")
    seen = len(recorded.trace)
    await session.import_messages("main", CHAT, format="openai")
    points = recorded.all_boundaries()[seen:]
    assert [each.boundary for each in points if each.boundary.endswith(".before")] == [
        f"commit.{name}.before" for name in COMMITS
    ]
    await session.close()

    for number, (point, branch) in enumerate((point, branch) for point in points for branch in ("main", "old")):
        plan = FaultPlan().kill_at(point.boundary, nth=point.nth)
        session = await place.open(f"s{number}", probe=plan)
        await session.create_branch("main")
        importing = asyncio.ensure_future(session.import_messages(branch, CHAT, format="openai"))
        assert await plan.died() == point
        await bury(session, importing)

        session = await place.open(f"s{number}")
        made = _is_there(session, branch)
        # What is killed in the middle of its commit is there or not, and commits of SQLite may share a transaction.
        if point.boundary.endswith(".before") or (place.kind != "sqlite" and not point.boundary.endswith(".inside")):
            assert made is (point.boundary == "commit.import.after"), point
        assert session.branches() == (["main", "old"] if made and branch == "old" else ["main"])
        assert await check_invariants(session) == []
        if not made:
            await session.import_messages(branch, CHAT, format="openai")
        messages = await session.branch(branch).messages()
        assert messages == [each for each in read_history(CHAT, format="openai").bodies if not isinstance(each, Custom)]
        assert await check_invariants(session) == []
        await session.close()


def _is_there(session: Session, branch: str) -> bool:
    return branch in session.branches() and session.branch(branch).tip() is not None


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_commit_that_fails_leaves_nothing_that_shows(place: Place, nth: int) -> None:
    store = FailingStore(place.store, nth=None)
    place.store = store
    session = await place.open()
    lane = await session.lane("main", agent_of("on"))
    await lane.append_message(user("here"))
    tip = lane.tip()
    store.fail_next(nth)

    with pytest.raises(SessionFaulted):
        await session.import_messages("main", CHAT, format="openai")
    await session.reopen()

    assert lane.tip() == tip
    await session.import_messages("main", CHAT, format="openai")
    assert len(await lane.messages()) == 7
    assert await check_invariants(session) == []


# Beside others.


async def test_who_appends_meanwhile_comes_behind_it(memory: Place) -> None:
    gated, trace = GatedStore(memory.store), Trace()
    gated.gate.open()
    memory.store = trace.store(gated)
    session = await memory.open()
    branch = await session.create_branch("main")
    gated.gate.shut()

    importing = asyncio.create_task(session.import_messages("main", CHAT, format="openai"))
    await gated.gate.arrived(3)
    appending = asyncio.create_task(branch.append_message(user("behind")))
    aside = asyncio.create_task(session.create_branch("other"))
    await gated.gate.arrived(4)
    assert gated.gate.held == (*COMMITS, "branch")
    assert branch.tip() is None and await branch.messages() == []
    gated.gate.open()
    report, entry = await importing, await appending
    await aside

    assert isinstance(entry, Entry) and entry.parent_id == report.tip
    assert (await branch.messages())[-1] == user("behind")
    assert check_trace(trace) == [] and await check_trace_against(trace, session) == []


async def test_who_watches_is_told_that_the_path_moved(memory: Place) -> None:
    session = await memory.open()
    lane = await session.lane("main", agent_of("on"))
    async with lane.watch() as watch:
        before = await anext(watch)
        assert isinstance(before, LaneSnapshot) and before.tip is None

        report = await session.import_messages("main", CHAT, format="openai")

        event = await anext(watch)
        assert isinstance(event, PathMoved) and event.tip == report.tip


async def test_a_short_one_is_one_commit(place: Place) -> None:
    trace = Trace()
    place.store = trace.store(place.store)
    session = await place.open()
    many = [{"role": "user", "content": str(number)} for number in range(1_000)]

    await session.import_messages("old", many, format="openai")

    writes = [len(each.writes) for each in trace.events if hasattr(each, "writes") and each.name.startswith("import")]
    assert writes == [1_001]
    assert [each.text for each in await _texts(session)] == [str(number) for number in range(1_000)]


async def _texts(session: Session) -> list[Any]:
    return [part for each in await session.branch("old").messages() for part in each.content]


async def test_commits_are_bounded(memory: Place) -> None:
    trace = Trace()
    memory.store = trace.store(memory.store)
    session = await memory.open()
    many = [{"role": "user", "content": "x" * 10_000} for _ in range(200)]

    await session.import_messages("old", many, format="openai")

    commits = [each for each in trace.events if hasattr(each, "writes") and each.name.startswith("import")]
    sizes = [sum(len(getattr(write, "payload", b"")) for write in each.writes) for each in commits]
    assert len(commits) == 8 and max(sizes) <= COMMIT_BYTES_MAX + 100
    moved = [write.address for each in commits for write in each.writes if isinstance(write, SetValue)]
    assert moved == [addresses.branch_tip("old")]
    assert isinstance((await session.branch("old").messages())[0], UserMessage)
