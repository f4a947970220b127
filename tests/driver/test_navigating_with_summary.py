"""Claim: a lane moves with a summary of what it leaves in one commit, or stays where it is and says why."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentlane import (
    Agent,
    Block,
    BranchSummary,
    Compact,
    CompactionPolicy,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    Navigate,
    PathMoved,
    Prompt,
    RequestConflict,
    Session,
    hook,
    tool,
)
from agentlane.data.messages import AssistantMessage, TextPart, ToolCallPart, user
from agentlane.driver import apart
from agentlane.machine.context import NOT_AVAILABLE
from agentlane.testing import ScriptedModel, call, check_invariants, fail, hang, hold
from tests.driver.compacting import answers, compacting, memory_session, path, said, shown, summaries, talk, transcript


@pytest_asyncio.fixture
async def session() -> AsyncIterator[Session]:
    session = await memory_session()
    yield session
    assert await check_invariants(session) == []
    await session.close()


def model_of(given: Any = "S1") -> ScriptedModel:
    return ScriptedModel([said(f"a{number}") for number in range(1, 6)], summaries=given)


async def talked(session: Session, given: Any = "S1", **options: Any) -> tuple[Any, ScriptedModel, list[str]]:
    """A lane behind two runs, with its model and its entries."""
    model = model_of(given)
    lane = await session.lane("main", compacting(model, **options))
    await talk(lane, "u1", "u2")
    return lane, model, [each.id for each in await lane.entries(newest_first=False)]


async def test_it_moves_and_leaves_a_summary_there(session: Session) -> None:
    lane, model, ids = await talked(session)
    moved = await lane.navigate(ids[1], label="left", summarize=True, instructions="names")
    assert (moved.from_tip, moved.tip) == (ids[3], moved.summary) and moved.summary == lane.tip()
    body = (await session.entry(moved.summary)).body
    assert isinstance(body, BranchSummary) and (body.summary, body.left) == ("S1", ids[3])
    assert await session.label(ids[3]) == "left"
    [asked] = summaries(model)
    assert asked.instructions.endswith("names") and asked.tools == ()
    text = transcript(asked)
    assert "u2 " in text and "a2 " in text and "u1 " not in text and "a1 " not in text
    await talk(lane, "w2")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "[branch: S1]", "user w2"]
    await lane.navigate(ids[3])
    assert await path(lane) == ["user u1", "model a1", "user u2", "model a2"]


async def test_as_an_operation_it_has_a_record(session: Session) -> None:
    lane, _, ids = await talked(session)
    result = await lane.run(Navigate(ids[1], summarize=True))
    assert (result.kind, result.status, result.inputs, result.text) == ("navigate", "completed", (), "S1")
    assert (result.from_tip, result.to_tip, result.summary) == (ids[3], lane.tip(), lane.tip())
    assert (result.usage.rows, result.answer, result.turns) == (1, None, 0)
    plain = await lane.run(Navigate(ids[3], "there"))
    assert (plain.to_tip, plain.summary, plain.text, plain.usage.rows) == (ids[3], None, "", 0)
    assert await session.label(str(result.to_tip)) == "there"
    assert lane.tip() == ids[3]


@pytest.mark.parametrize("to", ["tip", "descendant", "root-empty"])
async def test_where_nothing_is_left_behind_no_model_is_asked(session: Session, to: str) -> None:
    lane, model, ids = await talked(session)
    if to == "descendant":
        await lane.navigate(ids[1])
    if to == "root-empty":
        lane = await session.lane("empty", compacting(model))
    target = {"tip": ids[3], "descendant": ids[3], "root-empty": None}[to]
    moved = await lane.navigate(target, summarize=True)
    assert (moved.tip, moved.summary, lane.tip()) == (target, None, target)
    assert summaries(model) == [] and lane.inspect().operation is None


async def test_to_before_the_first_entry(session: Session) -> None:
    lane, model, ids = await talked(session)
    moved = await lane.navigate(None, summarize=True)
    assert await path(lane) == ["branch_summary S1"]
    assert (await session.entry(moved.summary)).parent_id is None
    assert "u1 " in transcript(summaries(model)[0])
    await talk(lane, "w1")
    assert shown(answers(model)[-1]) == ["[branch: S1]", "user w1"]
    assert ids


async def test_from_an_empty_lane_to_an_entry_of_another(session: Session) -> None:
    _, model, ids = await talked(session)
    empty = await session.lane("empty", compacting(model))
    with pytest.raises(InvalidNavigation, match="'empty' is empty: it leaves no entry behind"):
        await empty.navigate(ids[1], label="x", summarize=True)
    assert empty.inspect().operation is None
    moved = await empty.navigate(ids[1], summarize=True)
    assert (moved.from_tip, moved.tip, moved.summary) == (None, ids[1], None)
    await talk(empty, "w")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user w"]


async def test_across_to_another_branch(session: Session) -> None:
    """What both have in common is not summarized, and what only the target has is not either."""
    lane, model, ids = await talked(session)
    other = await session.create_branch("other", at=ids[1])
    await other.append_message(user("SECRET"))
    target = other.tip()
    moved = await lane.navigate(target, summarize=True)
    assert moved.summary is not None
    text = transcript(summaries(model)[0])
    assert "u2 " in text and "u1 " not in text and "SECRET" not in text
    assert await path(lane) == ["user u1", "model a1", "user SECRET", "branch_summary S1"]
    assert other.tip() == target


@pytest.mark.parametrize("page", [1, 2, 3, 256])
async def test_where_two_paths_part_is_found_at_any_length(
    session: Session, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "PAGE", page)
    trunk = await session.create_branch("trunk")
    ids: list[str | None] = [None, *[(await trunk.append_message(user(f"t{n}"))).id for n in range(4)]]
    for shared in range(5):
        for one, other in ((1, 1), (1, 5), (5, 1), (4, 4)):
            names = [f"b{shared}.{one}.{other}.{side}" for side in (0, 1)]
            tips = []
            for name, length in zip(names, (one, other), strict=True):
                branch = await session.create_branch(name, at=ids[shared])
                tips.append([(await branch.append_message(user("x"))).id for _ in range(length)][-1])
            assert await apart._base(session._runtime, tips[0], tips[1]) == ids[shared]
            if shared:
                assert await apart._base(session._runtime, tips[0], ids[shared]) == ids[shared]
                assert await apart._base(session._runtime, ids[shared], tips[1]) == ids[shared]


async def test_a_path_with_a_compaction_on_it_is_summarized_as_it_was_shown(session: Session) -> None:
    numbers = itertools.count(1)
    lane, model, ids = await talked(session, lambda request: f"S{next(numbers)}")
    await lane.compact()
    await talk(lane, "u3")
    await lane.navigate(ids[1], summarize=True)
    text = transcript(summaries(model)[1])
    assert "S1" in text and "u3 " in text and "u1 " not in text, text
    assert (await path(lane))[-1] == "branch_summary S2"


async def test_what_a_compaction_kept_from_before_the_parting_is_summarized_too(session: Session) -> None:
    """Its summary is of what stays; all that is left behind stood in what it kept, and is in the next one."""
    numbers = itertools.count(1)
    policy = CompactionPolicy(keep_tokens=450)  # two turns
    lane, model, ids = await talked(session, lambda request: f"S{next(numbers)}", compaction=policy)
    await talk(lane, "u3")
    await lane.compact()
    await talk(lane, "u4")
    assert shown(answers(model)[-1]) == ["[summary: S1]", "user u2", "model a2", "user u3", "model a3", "user u4"]

    await lane.navigate(ids[3], summarize=True)

    text = transcript(summaries(model)[1])
    assert [word for word in ("u1", "u2", "u3", "a3", "u4", "a4", "S1") if word in text] == ["u3", "a3", "u4", "a4"]


async def test_a_compaction_alone_leaves_nothing_behind(session: Session) -> None:
    lane, model, ids = await talked(session, compaction=CompactionPolicy(keep_tokens=250))
    await lane.compact()
    await lane.navigate(ids[3], summarize=True)
    assert len(summaries(model)) == 1 and lane.tip() == ids[3]


async def test_a_target_before_a_compaction_is_shown_in_full(session: Session) -> None:
    lane, model, ids = await talked(session)
    await lane.compact(keep_tokens=0)
    await lane.navigate(ids[2], summarize=True)
    await talk(lane, "w")
    assert shown(answers(model)[-1]) == ["user u1", "model a1", "user u2", "[branch: S1]", "user w"]


async def test_a_target_inside_a_batch_gets_its_results_first(session: Session) -> None:
    @tool(replay="safe")
    def look() -> str:
        return "seen"

    model = ScriptedModel([[call("look"), call("look")], said("a1"), said("a2")], summaries="S1")
    lane = await session.lane("main", compacting(model, tools=[look]))
    await talk(lane, "u1")
    ids = [each.id for each in await lane.entries(newest_first=False)]
    await lane.navigate(ids[1], summarize=True)
    word = NOT_AVAILABLE.split()[0]
    assert await path(lane) == [
        "user u1",
        "model (look,look)",
        f"result {word}",
        f"result {word}",
        "branch_summary S1",
    ]
    await talk(lane, "w")
    assert shown(answers(model)[-1])[-2:] == ["[branch: S1]", "user w"]


@pytest.mark.parametrize(("to", "results"), [(1, ["s1", "s2"]), (2, ["s1", "s2"]), (3, [])])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not answered yet"])
async def test_results_that_are_left_are_summarized_with_their_answer(
    session: Session, to: int, results: list[str], answered: bool
) -> None:
    """They are gone where the lane goes: it says there that they are not available."""

    @tool(replay="safe")
    def look(at: str) -> str:
        return at

    model = ScriptedModel([[call("look", at="s1"), call("look", at="s2")], said("a1"), said("a2")], summaries="S1")
    lane = await session.lane("main", compacting(model, tools=[look]))
    await talk(lane, "u1")
    ids = [each.id for each in await lane.entries(newest_first=False)]
    if not answered:
        await lane.navigate(ids[3])
    moved = await lane.navigate(ids[to], summarize=True)
    if not answered and not results:
        assert moved.summary is None and summaries(model) == []
        return
    told = transcript(summaries(model)[0])
    lines = [f'<returned tool="look">\n{result}\n</returned>' for result in results]
    assert all(line in told for line in lines) and told.count("<returned") == len(results)
    assert told.count("<called") == len(results) and (said("a1") in told) == answered


# Refused and failed.


async def test_a_summary_that_fails_leaves_the_lane_where_it_is(session: Session) -> None:
    lane, _, ids = await talked(session, [fail("refused", "not for you")])
    with pytest.raises(InvalidNavigation, match=r"did not move: operation .* is failed: not for you") as caught:
        await lane.navigate(ids[1], label="left", summarize=True)
    result = await lane.result(caught.value.details["operation_id"])
    assert result is not None and (result.status, result.code, result.usage.rows) == ("failed", "refused", 1)
    assert lane.tip() == ids[3] and await session.label(ids[3]) is None


async def test_an_abort_leaves_the_lane_where_it_is(session: Session) -> None:
    lane, model, ids = await talked(session, [hang()])
    moving = asyncio.ensure_future(lane.navigate(ids[1], label="left", summarize=True))
    await model.hanging()
    operation = lane.inspect().operation
    assert operation is not None and (operation.at, operation.summarizing) == ("summarizing", "navigation")
    await lane.request_abort(operation.operation_id)
    with pytest.raises(InvalidNavigation, match="is aborted"):
        await moving
    assert lane.tip() == ids[3] and await session.label(ids[3]) is None


@pytest.mark.parametrize("summarize", [True, False])
@pytest.mark.parametrize("answer", [Block("a deploy ran"), ValueError("no way")], ids=["block", "raise"])
async def test_a_hook_refuses_the_operation(session: Session, summarize: bool, answer: Any) -> None:
    asked: list[Any] = []

    def before(info: Any) -> Any:
        asked.append(info)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lane, model, ids = await talked(session, hooks=[hook("before_navigation", before)])
    result = await lane.run(Navigate(ids[1], "left", summarize))
    assert result.status == "failed" and result.error is not None
    assert ("a deploy ran" if isinstance(answer, Block) else "no way") in result.error.message
    assert lane.tip() == ids[3] and summaries(model) == [] and await session.label(ids[3]) is None
    [info] = asked
    assert (info.from_tip, info.to, info.label, info.messages) == (ids[3], ids[1], "left", ())
    with pytest.raises(InvalidNavigation, match="a deploy ran|no way"):
        await lane.navigate(ids[1], summarize=summarize)


async def test_a_hook_that_lets_it_pass_is_asked_once(session: Session) -> None:
    asked: list[Any] = []
    lane, _, ids = await talked(session, hooks=[hook("before_navigation", lambda info: asked.append(info))])
    await lane.navigate(ids[1], summarize=True)
    assert len(asked) == 1 and asked[0].to == ids[1]


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (Navigate("nowhere"), InvalidNavigation, "no entry 'nowhere' is in session 's'"),
        (Navigate(3), InvalidNavigation, r"navigate\.to: 3 is no id of an entry"),  # type: ignore[arg-type]
        (Navigate("\ud800"), InvalidNavigation, "no id of an entry|no entry"),
        (Navigate(None, summarize="yes"), InvalidMessage, r"navigate\.summarize: 'yes'"),  # type: ignore[arg-type]
        (Navigate(None, instructions="x"), InvalidMessage, r"navigate\.instructions: .*summarize=True"),
        (Navigate(None, instructions=3, summarize=True), InvalidMessage, "text is needed here, not int"),  # type: ignore[arg-type]
        (Navigate(None, label=3), InvalidMessage, r"navigate\.label: "),  # type: ignore[arg-type]
        (Navigate(None, label=b"x"), InvalidMessage, r"navigate\.label: "),  # type: ignore[arg-type]
    ],
)
async def test_odd_requests_are_refused_and_open_nothing(
    session: Session, request_: Navigate, error: type[Exception], text: str
) -> None:
    lane, _, ids = await talked(session)
    with pytest.raises(error, match=text):
        await lane.accept(request_, operation_id="n")
    assert lane.inspect().operation is None and lane.tip() == ids[3]


async def test_the_same_id_is_the_same_navigation(session: Session) -> None:
    lane, model, ids = await talked(session)
    first = await lane.accept(Navigate(ids[1], summarize=True), operation_id="n")
    assert await lane.accept(Navigate(ids[1], summarize=True), operation_id="n") == first
    for other in (Navigate(ids[1]), Navigate(ids[2], summarize=True), Compact(), Prompt("x")):
        with pytest.raises(RequestConflict):
            await lane.accept(other, operation_id="n")
    outcome = await lane.drive("n")
    assert await lane.accept(Navigate(ids[1], summarize=True), operation_id="n") == first
    assert await lane.drive("n") == outcome and len(summaries(model)) == 1
    with pytest.raises(RequestConflict):
        await lane.retry("n")


# What comes meanwhile.


async def test_what_is_said_meanwhile_stands_behind_the_summary(session: Session) -> None:
    lane, model, ids = await talked(session, [hold("S1")])
    moving = asyncio.ensure_future(lane.navigate(ids[1], summarize=True))
    await model.hanging()
    for move in (lambda: lane.navigate(None), lambda: lane.rewind(ids[0]), lambda: lane.accept(Prompt("x"))):
        with pytest.raises(LaneBusy):
            await move()
    waiting = asyncio.ensure_future(lane.wait_idle())
    note = await lane.append_message(user("note"))
    steer = await lane.steer("steer")
    receipt = await lane.submit("submitted", request_id="r")
    assert [each.id for each in lane.queued()] == [note.id, steer.id, receipt.entries[0]] and not waiting.done()
    model.release()
    moved = await moving
    open_now = lane.inspect().operation
    assert open_now is not None and moved.summary is not None
    assert await path(lane) == ["user u1", "model a1", "branch_summary S1", "user note", "user steer", "user submitted"]
    found = await lane.receipt("r")
    assert found is not None and (found.state, found.operation_id) == ("taken", open_now.operation_id)
    result = await lane.resume()
    assert result is not None and result.status == "completed"
    await waiting
    assert shown(answers(model)[-1])[2:] == ["[branch: S1]", "user note", "user steer", "user submitted"]


@pytest.mark.parametrize("refused", [False, True], ids=["it moves", "it stays"])
async def test_a_submitted_message_never_parts_a_call_from_its_result(session: Session, refused: bool) -> None:
    """Without a summary nothing has answered the calls at the tip when the next operation begins there."""

    @tool(replay="safe")
    def look() -> str:
        return "seen"

    model = ScriptedModel([[call("look"), call("look")], said("a1"), said("a2")])
    hooks = [hook("before_navigation", lambda info: Block("no") if refused and info.label else None)]
    lane = await session.lane("main", compacting(model, tools=[look], hooks=hooks))
    await talk(lane, "u1")
    ids = [each.id for each in await lane.entries(newest_first=False)]
    if refused:
        await lane.navigate(ids[1])
    await lane.accept(Navigate(ids[0] if refused else ids[1], label="left"), operation_id="nav")
    await lane.submit("submitted")
    settled = await lane.drive("nav")
    assert settled.result.status == ("failed" if refused else "completed") and settled.result.next_operation
    word = NOT_AVAILABLE.split()[0]
    story = ["user u1", "model (look,look)", f"result {word}", f"result {word}", "user submitted"]
    assert await path(lane) == story
    await lane.resume()
    assert await path(lane) == [*story, "model a1"] and shown(answers(model)[-1]) == story
    assert (await session.verify()).findings == ()


async def test_what_nobody_takes_waits_for_the_next_prompt(session: Session) -> None:
    lane, model, ids = await talked(session, [hold("S1")])
    moving = asyncio.ensure_future(lane.navigate(ids[1], summarize=True))
    await model.hanging()
    note = await lane.append_message(user("note"))
    model.release()
    await moving
    assert [each.id for each in lane.queued()] in ([note.id], [])
    await talk(lane, "w2")
    assert await path(lane) == ["user u1", "model a1", "branch_summary S1", "user note", "user w2", "model a2"]


async def test_a_watcher_sees_the_path_move_once(session: Session) -> None:
    lane, _, ids = await talked(session)
    async with lane.watch() as watch:
        moved = await lane.navigate(ids[1], summarize=True)
        snapshot, moves = None, []
        async for item in watch:
            if snapshot is None:
                snapshot = item
                continue
            snapshot = snapshot.apply(item)
            moves.append(item) if isinstance(item, PathMoved) else None
            if type(item).__name__ == "OperationSettled":
                break
    assert len(moves) == 1
    assert snapshot is not None and snapshot.tip == moved.tip == lane.tip()
    assert [each.id for each in snapshot.entries] == [ids[0], ids[1], moved.summary]


async def test_calls_that_the_left_path_has_open_are_no_calls_of_the_summary(session: Session) -> None:
    """Left inside a batch: what is summarized shows the calls as without results, and the tip left stays as it was."""
    lane, model, ids = await talked(session)
    calls = AssistantMessage(
        content=(TextPart(text="c1"), ToolCallPart(id="1", name="t", arguments={})), stop_reason="tool_calls"
    )
    await lane.append_message(user("u3"))
    await lane.append_message(calls)
    left = lane.tip()
    await lane.navigate(ids[3], summarize=True)
    assert "c1" in transcript(summaries(model)[0])
    other = await session.create_branch("again", at=left)
    assert (await other.entries(limit=1))[0].id == left


async def test_nothing_but_application_entries_left_behind(session: Session) -> None:
    """There is nothing that a summary could be about: the lane moves without asking, or says why not."""
    lane, model, ids = await talked(session)
    await lane.append_custom("app.mark", {"n": 1})
    moved = await lane.navigate(ids[3], summarize=True)
    assert (moved.tip, moved.summary) == (ids[3], None)
    assert summaries(model) == []


async def test_a_compaction_of_nothing_that_is_left_is_no_part_of_what_is_left(session: Session) -> None:
    """It tells of what stands before it, where the lane goes too: only what was said behind that is summarized."""
    model = ScriptedModel(["a1", "a2", "a3"])
    lane = await session.lane("main", Agent(model=model))
    await lane.run("u1")
    before = lane.tip()
    await lane.compact(keep_tokens=0)

    back = await lane.navigate(before, summarize=True)

    assert back.summary is None and lane.tip() == before
    await lane.compact(keep_tokens=0)
    await lane.run("u2")
    asked = len(model.requests)
    moved = await lane.navigate(before, summarize=True)
    text = model.requests[asked].messages[0].content[0].text
    assert moved.summary is not None
    assert "u2" in text and "a2" in text and "Summary of" not in text


async def test_a_lane_that_is_there_already_asks_no_hook(session: Session) -> None:
    """As the plain move: nothing moves, so nobody can say that it must not."""
    asked: list[str | None] = []
    refusing = hook("before_navigation", lambda info: (asked.append(info.to), Block("no"))[1])
    lane = await session.lane("main", Agent(model=ScriptedModel(["a1"]), hooks=[refusing]))
    await lane.run("u1")

    stayed = await lane.run(Navigate(lane.tip(), "here"))
    moved = await lane.run(Navigate(None))

    assert (stayed.status, await session.label(str(lane.tip()))) == ("completed", "here")
    assert (moved.status, moved.code, asked) == ("failed", "navigation_refused", [None])
