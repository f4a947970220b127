"""Claim: a lane reads what it needs of a path and no more, and is the same as one that has read all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from agentlane import Agent
from agentlane.data import addresses, codec
from agentlane.data.entries import BranchSummary, Compaction, Custom, Entry
from agentlane.data.messages import AssistantMessage, ErrorInfo, UserMessage, user
from agentlane.data.operations import Checkpoint, OperationState, Planned, Summarizing, SummaryPrep, SummaryWait, Tools
from agentlane.data.results import OperationResult
from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import InsertUsage, SetValue
from agentlane.driver import lane_core
from agentlane.driver.open_operation import OpenOperation
from agentlane.errors import CorruptSession
from agentlane.machine.context import ModelContext
from agentlane.machine.summaries import shown_summary
from agentlane.storage.contract import SessionStorage
from agentlane.testing import ScriptedModel, fail
from tests.driver.written_lanes import Path, Rows, asks, compaction, core_of, entry_id, operation, said, write
from tests.session.places import KINDS, Place


@pytest_asyncio.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: FilePath) -> AsyncIterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    await made.end()


@pytest_asyncio.fixture
async def memory(tmp_path: FilePath) -> AsyncIterator[Place]:
    made = Place("memory", tmp_path)
    yield made
    await made.end()


async def whole_path(storage: SessionStorage, tip: str | None, *, since: str | None = None) -> list[Entry]:
    """As ``read_path``, but all of it."""
    rows = [] if tip is None else await storage.path(tip, newest_first=False)
    return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in rows]


async def seen(place: Place) -> dict[str, Any]:
    """What a lane knows that has just been read."""
    session = await place.open()
    core = core_of(session)
    await core.load()
    context, opened = core.context, core.operation
    known: dict[str, Any] = {
        "messages": list(context.view()),
        "earlier": context.earlier,
        "pieces": context.pieces(lambda message: 1),
        "known tokens": context.known_tokens,
        "open calls": core.open_calls(),
        "unanswered": core.unanswered,
    }
    if core.batches() and core.batches()[-1][0] in [piece.id for piece in known["pieces"]]:
        known["before the answer"] = core.before_answer
    if opened is not None:
        known["batches"] = core.batches()
        known["keys"] = [core.call_key(opened, answer, 0) for answer, _ in core.batches()]
        known["earlier batches"] = core.earlier_batches
        for name in ("answer_text", "calls", "cut", "corrections", "follow_ups", "usage", "prep"):
            known[name] = getattr(opened, name)
    await session.close()
    return known


async def check_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The lane is the same if the whole path is read; what is known of it."""
    bounded = await seen(place)
    with monkeypatch.context() as patched:
        patched.setattr(lane_core, "read_path", whole_path)
        whole = await seen(place)
    assert bounded == whole
    return bounded


def long_path(turns: int, *, kept: int = 2, later: int = 1) -> Path:
    path = Path()
    path.turns(turns + kept)
    path.add(compaction(path.entries[-2 * kept][0]))
    path.turns(later)
    return path


# How much is read.


async def test_of_ten_thousand_entries_behind_a_compaction_none_is_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = long_path(5_000)
    await write(place, path)
    session = await place.open()
    model = ScriptedModel(["done"])
    rows = Rows(monkeypatch, session._runtime.storage)

    lane = await session.lane("main", Agent(model=model))
    await lane.run("next")

    assert rows.count == 2 + 1 + 4, "what came later, the compaction, and what it keeps"
    assert list(model.requests[0].messages) == [
        shown_summary("so far"),
        user("asked 10000"),
        said("said 10000"),
        user("asked 10002"),
        said("said 10002"),
        user("asked 10005"),
        said("said 10005"),
        user("next"),
    ]


async def test_a_lane_without_a_compaction_reads_all_of_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path()
    path.turns(20)
    await write(place, path)
    known = await check_same(place, monkeypatch)
    session = await place.open()
    rows = Rows(monkeypatch, session._runtime.storage)

    await core_of(session).load()

    assert rows.count == 40 and [len(known["messages"]), known["unanswered"]] == [40, []]


async def test_a_compaction_that_keeps_nothing_is_the_last_that_is_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path()
    path.turns(50)
    path.add(compaction(None), user("next"))
    await write(place, path)
    known = await check_same(place, monkeypatch)
    session = await place.open()
    rows = Rows(monkeypatch, session._runtime.storage)

    await core_of(session).load()

    assert rows.count == 2
    assert known["messages"] == [shown_summary("so far"), user("next")] and known["unanswered"] == [path.tip]


async def test_navigation_and_retry_read_no_more_than_is_needed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = long_path(100)
    await write(place, path)
    session = await place.open()
    model = ScriptedModel([fail("refused"), "done"])
    lane = await session.lane("main", Agent(model=model))
    failed = await lane.run("fails")
    assert failed.status == "failed"
    rows = Rows(monkeypatch, session._runtime.storage)

    await lane.retry(failed.operation_id, operation_id="again")
    assert rows.count == 7 + 2, "with the prompt and the failed answer"
    assert (await lane.drive("again")).result.status == "completed"  # type: ignore[union-attr]

    rows.count = 0
    await lane.navigate(path.tip)
    assert rows.count == 7
    assert list(core_of(session).context.view()) == list(model.requests[-1].messages)[:-1]


async def test_an_operation_is_read_from_its_input_on_which_may_be_before_the_kept_tail(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls are counted from its input on, and what is kept begins inside of it."""
    path, opened = long_run()
    await write(place, path, opened)
    known = await check_same(place, monkeypatch)
    session = await place.open()
    rows = Rows(monkeypatch, session._runtime.storage)

    await core_of(session).load()

    assert rows.count == 1 + 2 * 7 + 1, "its input, its calls and results, and the compaction"
    assert len(known["batches"]) == 7 and known["keys"][-1].endswith("/6")
    assert len(known["messages"]) == 1 + 2 * 3
    assert known["unanswered"] == [] and known["answer_text"] == f"asks {len(path.entries) - 2}"


async def test_a_retry_reads_from_the_input_on_though_it_was_summarized(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = long_run()
    await write(place, path, also=[SetValue(addresses.result("old"), codec.encode(failed(path, opened)))])
    session = await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["done"])))
    await core_of(session).load()
    rows = Rows(monkeypatch, session._runtime.storage)

    await lane.retry("old", operation_id="again")

    core = core_of(session)
    assert rows.count == 1 + 2 * 7 + 1 and len(core.batches()) == core.earlier_batches == 7
    assert core.operation is not None and core.operation.answer_text == f"asks {len(path.entries) - 2}"


def failed(path: Path, opened: OpenOperation) -> OperationResult:
    """The record of the operation, as if it had failed at the end of the path."""
    return OperationResult(
        operation_id="old",
        lane="main",
        agent="agent",
        kind="prompt",
        status="failed",
        request_digest="d",
        key_operation="op",
        inputs=opened.meta.inputs,
        from_tip=opened.meta.start_tip,
        to_tip=path.tip,
        started_at=1,
        ended_at=2,
        turns=7,
    )


async def test_the_entry_before_an_answer_is_known_where_the_answer_is_the_first_that_is_read(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path()
    path.turns(3)
    answer = path.batch()
    path.add(compaction(answer))
    await write(memory, path)

    known = await check_same(memory, monkeypatch)

    assert known["before the answer"] == entry_id(6)


def long_run() -> tuple[Path, OpenOperation]:
    """A run of seven batches, of which the last two of the first five are kept by a compaction before the others."""
    path = Path()
    path.turns(30)
    prompt = path.add(user("go"))
    answers = [path.batch() for _ in range(6)]
    path.add(compaction(answers[-2]))
    answers.append(path.batch())
    state = Checkpoint(next="respond", trigger=path.tip, turn=7, answer=answers[-1])
    return path, operation(state, inputs=(prompt,), start_tip=entry_id(60))


# The same as of all of it.


def _kept_behind_the_input() -> tuple[Path, OpenOperation]:
    """The compaction was there before the operation."""
    path = long_path(20)
    start = path.tip
    prompt = path.add(user("go"), user("and so"))
    answer = path.batch()
    return path, operation(
        Checkpoint(next="respond", trigger=answer), inputs=(path.entries[-4][0], prompt), start_tip=start
    )


def _in_a_batch() -> tuple[Path, OpenOperation]:
    """The answer that runs its calls is the first entry that is kept."""
    path = Path()
    path.turns(3)
    prompt = path.add(user("go"))
    path.batch()
    answer = path.add(asks(99))
    path.add(compaction(answer))
    return path, operation(Tools(calls=(Planned(),), answer=answer), inputs=(prompt,), start_tip=entry_id(6))


def _many_compactions() -> tuple[Path, OpenOperation]:
    """One keeps from a tail that the one before kept, all inside of one operation."""
    path = Path()
    path.turns(5)
    path.add(compaction(path.entries[-2][0], "before"))
    prompt = path.add(user("go"))
    answers = [path.batch() for _ in range(4)]
    path.add(compaction(answers[1], "first"))
    path.batch()
    path.add(compaction(answers[3], "second"))
    path.add(user("said meanwhile"), Custom(type="note", data=1))
    return path, operation(Checkpoint(next="respond", trigger=path.tip), inputs=(prompt,), start_tip=entry_id(11))


def _a_retry() -> tuple[Path, OpenOperation]:
    """Batches before where it was tried again are those of an earlier operation."""
    path = Path()
    path.turns(5)
    prompt = path.add(user("go"))
    path.batch()
    answer = path.batch()
    start = path.tip
    path.add(compaction(answer))
    path.batch()
    state = Checkpoint(next="respond", trigger=path.tip)
    return path, operation(state, inputs=(prompt,), start_tip=start, retry_of="old")


def _a_compaction_asked_for(state: OperationState) -> tuple[Path, OpenOperation]:
    """Without input; messages that nobody answered are behind the earlier compaction."""
    path = long_path(10)
    path.add(user("not answered"), BranchSummary(summary="left", left=entry_id(1)))
    return path, operation(state, start_tip=path.tip)


SUMMARIZING = Summarizing(task="task", reason="manual", response_id="r", attempt=1, trigger=entry_id(1))
WAITING = SummaryWait(
    task="task",
    reason="manual",
    attempt=1,
    trigger=entry_id(1),
    not_before=1,
    error=ErrorInfo(code="model_error", message="no"),
)
PREP = SummaryPrep(tip=entry_id(1), kept_from=entry_id(2), tokens_before=7)
PREPARED = SetValue(addresses.op_prep("op", "task"), codec.encode(PREP))


@pytest.mark.parametrize("made", [long_run, _kept_behind_the_input, _in_a_batch, _many_compactions, _a_retry])
async def test_an_operation_goes_on_as_if_all_had_been_read(
    memory: Place, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    path, opened = made()
    await write(memory, path, opened)

    known = await check_same(memory, monkeypatch)

    assert known["batches"]
    if made is _in_a_batch:
        found = known["open calls"]
        assert found is not None and found[0] == path.entries[-2][0]
        assert known["before the answer"] == path.entries[-3][0], "it is read of the entry that names it"
    if made is _a_retry:
        assert known["earlier batches"] == 2
    if made is _many_compactions:
        assert known["unanswered"] == [path.entries[-2][0]]
        assert known["messages"][0] == shown_summary("second") and len(known["messages"]) == 1 + 2 + 2 + 1


@pytest.mark.parametrize("state", [Checkpoint(next="summarize", trigger=entry_id(1)), SUMMARIZING, WAITING])
async def test_an_operation_without_input_goes_on_with_what_was_prepared(
    memory: Place, monkeypatch: pytest.MonkeyPatch, state: OperationState
) -> None:
    path, opened = _a_compaction_asked_for(state)
    rows = [
        UsageRow(id=entry_id(700), kind="summary", usage=Usage(input_tokens=3), operation_id="op"),
        UsageRow(id=entry_id(701), kind="attempt", usage=Usage(input_tokens=4), operation_id="op"),
        UsageRow(id=entry_id(702), kind="adjustment", usage=Usage(input_tokens=5), operation_id="op"),
        UsageRow(id=entry_id(703), kind="summary", usage=Usage(input_tokens=6), operation_id="other"),
    ]
    await write(memory, path, opened, [PREPARED, *map(InsertUsage, rows)])

    known = await check_same(memory, monkeypatch)

    assert known["prep"] == (None if isinstance(state, Checkpoint) else PREP)
    assert known["usage"].input_tokens == 7 and known["usage"].rows == 2, "its attempts at answers and at summaries"
    assert (known["answer_text"], known["calls"], known["batches"]) == ("", (), []), "no answer is its own"
    assert known["unanswered"] == [path.entries[-2][0]]


async def test_a_summary_whose_preparation_is_gone_is_refused_by_name(memory: Place) -> None:
    path, opened = _a_compaction_asked_for(SUMMARIZING)
    await write(memory, path, opened)
    session = await memory.open()

    with pytest.raises(CorruptSession, match="what the summary task is made of is not there"):
        await core_of(session).load()


async def test_an_input_that_is_not_on_the_path_is_found_out(memory: Place) -> None:
    path, _ = long_run()
    await write(memory, path, operation(Checkpoint(next="respond", trigger=path.tip), inputs=(entry_id(9_999),)))
    session = await memory.open()

    with pytest.raises(CorruptSession, match="is not on the path of lane 'main'"):
        await core_of(session).load()


# What an append needs.


@pytest.mark.parametrize("kept", [0, 1, 2, None])
async def test_an_append_finds_the_open_calls_behind_a_compaction(memory: Place, kept: int | None) -> None:
    """Of an answer that is kept the calls are open; of one that is not, nothing is shown and nothing is missing."""
    path = Path()
    path.add(user("go"), said("so"), asks(1))
    answer = path.tip
    path.add(compaction(None if kept is None else path.entries[kept][0]), Custom(type="note"))
    await write(memory, path)
    session = await memory.open()
    core = core_of(session)

    await core.load_end()
    at_the_end = core.open_calls()
    await core.load()

    assert at_the_end == core.open_calls()
    assert (at_the_end is None) if kept is None else (at_the_end is not None and at_the_end[0] == answer)


# Nothing of another branch.


async def test_what_another_branch_says_is_not_shown_behind_a_summary(place: Place) -> None:
    """R101: root to leaf of the branch alone, whatever was written beside it."""
    path = long_path(5)
    fork = path.entries[-4][0]  # inside of what the compaction keeps
    await write(place, path)
    session = await place.open()
    model = ScriptedModel(["on the other branch", "on this one"])
    lane = await session.lane("main", Agent(model=model))
    other = await session.lane("other", Agent(model=model), at=fork)
    await other.run("secret")
    await lane.run("go on")

    there, here = (list(request.messages) for request in model.requests)
    assert here[0] == shown_summary("so far") and user("secret") not in here and said("on the other branch") not in here
    context = ModelContext()
    for id, body in path.entries[: [id for id, _ in path.entries].index(fork) + 1]:
        context.add(id, body)
    assert there == [*context.view(), user("secret")] and shown_summary("so far") not in there
    assert sum(isinstance(each, UserMessage) for each in here) == 1 + 2 + 1 + 1


# Any path.


@st.composite
def written(draw: st.DrawFn) -> tuple[Path, OpenOperation | None]:
    """A path with compactions that keep what nobody has answered, and perhaps an operation that began somewhere."""
    path = Path()
    path.turns(1)
    for kind in draw(st.lists(st.sampled_from(["user", "turn", "batch", "batch", "note", "compaction"]), max_size=20)):
        match kind:
            case "user":
                path.add(user(f"asked {len(path.entries)}"))
            case "turn":
                path.turns(1)
            case "batch":
                path.batch()
            case "note":
                path.add(Custom(type="note"))
            case _:
                path.add(compaction(draw(st.sampled_from(_places_to_keep_from(path))), f"after {len(path.entries)}"))
    prompts = [id for id, body in path.entries if isinstance(body, UserMessage)]
    begun = draw(st.sampled_from([None, *prompts]))
    if begun is None:
        return path, None
    ids = [id for id, _ in path.entries]
    start = draw(st.sampled_from(ids[ids.index(begun) :]))
    again = {"retry_of": "old"} if draw(st.booleans()) else {}
    return path, operation(Checkpoint(next="respond", trigger=path.tip), inputs=(begun,), start_tip=start, **again)


def _places_to_keep_from(path: Path) -> list[str | None]:
    """Entries that a compaction at the end may keep from: those that count, up to the first message not answered."""
    found: list[str | None] = []
    at = max((n for n, (_, body) in enumerate(path.entries) if isinstance(body, Compaction)), default=None)
    newest = None if at is None else path.entries[at][1]
    ids = [id for id, _ in path.entries]
    first = 0 if at is None else at + 1
    if isinstance(newest, Compaction) and newest.kept_from is not None:
        first = ids.index(newest.kept_from)
    waiting = False
    for id, body in path.entries[first:]:
        if isinstance(body, UserMessage | AssistantMessage):
            if not waiting or isinstance(body, AssistantMessage):
                found.append(id)
            waiting = isinstance(body, UserMessage)
    return found if waiting else [*found, None]


@given(written())
def test_any_lane_is_as_if_all_of_it_had_been_read(made: tuple[Path, OpenOperation | None]) -> None:
    async def check() -> None:
        place = Place("memory", FilePath())
        await write(place, *made)
        with pytest.MonkeyPatch.context() as monkeypatch:
            await check_same(place, monkeypatch)
        await place.end()

    asyncio.run(check())
