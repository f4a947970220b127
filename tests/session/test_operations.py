"""Claim: work is accepted once by its id and ended once; each verb answers from what is committed, or says why not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    AbortReceipt,
    Admitted,
    Agent,
    AssistantMessage,
    ModelIdentity,
    Prompt,
    RetryPolicy,
    Settled,
    ToolContext,
    Usage,
    Waiting,
    accept,
    drive,
    request_abort,
    requestAbort,
    tool,
)
from agentlane.data.messages import user
from agentlane.errors import (
    InvalidMessage,
    InvalidName,
    LaneBusy,
    NoActiveOperation,
    OperationMismatch,
    RequestConflict,
    SessionClosed,
    UnknownModel,
    UnknownOperation,
    UnknownTool,
)
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang
from tests.session.places import Place, agent_of, echo

# Accept.


async def test_accepting_commits_and_starts_nothing(place: Place) -> None:
    session = await place.open()
    asked: list[str] = []

    def instructions(info: Any) -> str:
        asked.append(info.operation_id)
        return ""

    model = ScriptedModel(["done"])
    lane = await session.lane("main", Agent(model=model, instructions=instructions))

    admitted = await lane.accept(Prompt("hi"))

    assert admitted.lane == "main" and len(admitted.inputs) == 1 and lane.tip() == admitted.inputs[0]
    assert model.requests == [] and asked == [] and not lane.inspect().driving
    (operation,) = session.open_operations()
    assert operation == lane.inspect().operation
    assert (operation.operation_id, operation.status, operation.at) == (admitted.operation_id, "open", "checkpoint")
    assert await lane.result(admitted.operation_id) is None


async def test_the_same_request_under_the_same_id_is_the_same_operation_for_ever(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done", "more"))

    first = await lane.accept(Prompt("hi"), operation_id="op-1")
    again = await asyncio.gather(*(lane.accept(Prompt("hi"), operation_id="op-1") for _ in range(10)))
    assert again == [first] * 10
    await lane.drive("op-1")
    assert await lane.accept(Prompt("hi"), operation_id="op-1") == first
    other = await lane.accept(Prompt("more"), operation_id="op-2")
    assert await lane.accept(Prompt("hi"), operation_id="op-1") == first, "before a busy lane is considered"
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent_of("done", "more"))
    assert await lane.accept(Prompt("hi"), operation_id="op-1") == first
    assert await lane.accept(Prompt("more"), operation_id="op-2") == other
    assert len(await lane.entries(types=["user"])) == 2


async def test_ten_first_accepts_at_once_make_one_operation(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))

    admitted = await asyncio.gather(*(lane.accept(Prompt("hi"), operation_id="op") for _ in range(10)))

    assert admitted == [Admitted(operation_id="op", lane="main", inputs=admitted[0].inputs)] * 10
    assert session.stats().entries == 1


async def test_an_id_that_was_used_for_something_else_is_a_conflict(place: Place) -> None:
    session = await place.open()
    agent = agent_of("done")
    lane, side = await session.lane("main", agent), await session.lane("side", agent)
    await lane.accept(Prompt("hi"), operation_id="op")

    for settled in (False, True):
        if settled:
            await lane.drive("op")
        with pytest.raises(RequestConflict, match="'op'"):
            await lane.accept(Prompt("hello"), operation_id="op")
        with pytest.raises(RequestConflict, match="'op'"):
            await side.accept(Prompt("hi"), operation_id="op")
    assert side.tip() is None and side.inspect().operation is None


async def test_two_lanes_racing_for_one_id_make_one_operation(place: Place) -> None:
    session = await place.open()
    agent = agent_of("done")
    lanes = [await session.lane(name, agent) for name in ("a", "b")]

    told = await asyncio.gather(
        *(each.accept(Prompt("hi"), operation_id="op") for each in lanes), return_exceptions=True
    )

    assert sorted(type(each).__name__ for each in told) == ["Admitted", "RequestConflict"]
    assert len(session.open_operations()) == 1


async def test_a_busy_lane_says_what_with_and_nothing_is_ended(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    await lane.accept(Prompt("hi"), operation_id="first")

    with pytest.raises(LaneBusy, match="first") as caught:
        await lane.accept(Prompt("hello"))

    assert caught.value.details["operation_id"] == "first"
    with pytest.raises(LaneBusy):
        await lane.run("hello")
    assert [each.operation_id for each in session.open_operations()] == ["first"] and session.stats().entries == 1


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ("hi", "request: a Prompt is needed here, not str"),
        ({"text": "hi"}, "request: a Prompt is needed here, not dict"),
        (("user", "hi"), "request: a Prompt is needed here, not tuple"),
        ([user("hi")], "request: a Prompt is needed here, not list"),
        (Prompt(""), "prompt: it is empty"),
        (Prompt(messages=({"role": "user"},)), "prompt.messages[0]: a UserMessage is needed here, not dict"),
        (Prompt(messages=(user("a"),) * 10_001), "prompt: 10001 messages; at most 10000"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_what_is_no_request_is_refused_with_its_path_and_commits_nothing(
    request_: Any, why: str, memory: Place
) -> None:
    session = await memory.open()
    lane = await session.lane("main", agent_of("done"))

    with pytest.raises(InvalidMessage) as caught:
        await lane.accept(request_)

    assert str(caught.value).startswith(why) and session.stats().entries == 0 and session.open_operations() == []


@pytest.mark.parametrize("id", ["", "a b", "a|b", "x" * 129, 5, b"op", ["op"]], ids=repr)
async def test_an_operations_id_follows_the_pattern(id: Any, memory: Place) -> None:
    session = await memory.open()
    lane = await session.lane("main", agent_of("done"))

    with pytest.raises(InvalidName):
        await lane.accept(Prompt("hi"), operation_id=id)


async def test_several_messages_are_one_prompt_in_order_and_answered_together(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    given = [user("a"), user("b"), user("c")]

    done = await lane.run(Prompt(messages=given))  # type: ignore[arg-type]

    path = await lane.entries(newest_first=False)
    assert [entry.id for entry in path[:3]] == list(done.inputs) and [entry.body for entry in path[:3]] == given
    assert path[3].body.answers == done.inputs  # type: ignore[union-attr]


async def test_a_prompt_that_is_changed_after_it_was_given_changes_nothing(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    messages = [user("a")]

    pending = lane.accept(Prompt(messages=messages), operation_id="op")  # type: ignore[arg-type]
    await pending
    messages.append(user("b"))

    assert len(await lane.entries()) == 1


# Drive, result, resume, run.


async def test_run_is_accept_and_drive_and_gives_the_record(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of([call("echo", text="é")], "done", tools=[echo]))

    done = await lane.run("hi", operation_id="op")

    assert (done.operation_id, done.lane, done.agent, done.kind, done.status) == (
        "op",
        "main",
        "agent",
        "prompt",
        "completed",
    )
    assert (done.text, done.turns, done.code, done.error) == ("done", 2, None, None)
    assert done.from_tip is None and done.to_tip == done.answer == lane.tip() and done.usage.rows == 2
    assert await lane.result("op") == done and (await lane.drive("op")) == Settled(done)
    assert lane.inspect().operation is None and lane.inspect().last_operation_id == "op"
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent_of("x"))
    assert await lane.result("op") == done and await lane.drive("op") == Settled(done)


async def test_verbs_are_the_lanes_methods(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))

    admitted = await accept(lane, Prompt("hi"), operation_id="op")
    receipt = await request_abort(lane, "op")
    again = await requestAbort(lane, "op")
    outcome = await drive(lane, "op")

    assert admitted.operation_id == "op" and isinstance(outcome, Settled) and outcome.result.status == "aborted"
    assert receipt == AbortReceipt(operation_id="op", newly_requested=True, status="cancel_requested")
    assert again == AbortReceipt(operation_id="op", newly_requested=False, status="cancel_requested")
    assert await lane.requestAbort("op") == AbortReceipt(operation_id="op", newly_requested=False, status="aborted")


async def test_nothing_open_is_told_apart_from_unknown_and_from_elsewhere(place: Place) -> None:
    session = await place.open()
    agent = agent_of("done")
    lane, side = await session.lane("main", agent), await session.lane("side", agent)

    assert await lane.resume() is None
    with pytest.raises(NoActiveOperation, match="no open operation"):
        await lane.drive()
    with pytest.raises(NoActiveOperation):
        await lane.abort()
    for verb in (lane.drive, lane.request_abort, lane.result):
        with pytest.raises(UnknownOperation, match="ghost"):
            await verb("ghost")

    await side.accept(Prompt("hi"), operation_id="op")
    for verb in (lane.drive, lane.request_abort, lane.result):
        with pytest.raises(OperationMismatch, match="is open on lane 'side'"):
            await verb("op")
    for verb in (side.drive, side.request_abort):
        with pytest.raises(OperationMismatch, match="has operation op open; ghost is not known"):
            await verb("ghost")
    assert await side.result("op") is None
    done = await side.resume()
    assert await lane.result("op") == done == await side.result("op"), "a record is the session's"
    for verb in (lane.drive, lane.request_abort):
        with pytest.raises(OperationMismatch, match="belongs to lane 'side'"):
            await verb("op")
    assert side.inspect().last_operation_id == "op"


async def test_a_stale_id_never_aborts_newer_work(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two"))
    await lane.run("a", operation_id="old")
    await lane.accept(Prompt("b"), operation_id="new")

    receipt = await lane.request_abort("old")

    assert receipt == AbortReceipt(operation_id="old", newly_requested=False, status="completed")
    done = await lane.resume()
    assert done is not None and (done.operation_id, done.status) == ("new", "completed")


async def test_resume_goes_on_where_a_closed_session_stopped(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    admitted = await lane.accept(Prompt("hi"))
    await session.close()

    session = await place.open()
    assert [each.operation_id for each in session.open_operations()] == [admitted.operation_id]
    lane = await session.lane("main", agent_of("done"))
    done = await lane.resume()

    assert done is not None and done.operation_id == admitted.operation_id and done.text == "done"
    assert await lane.resume() is None and session.open_operations() == []


async def test_ten_drives_are_one_pass(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", Agent(model=model))
    admitted = await lane.accept(Prompt("hi"))

    outcomes = await asyncio.gather(*(lane.drive(admitted.operation_id) for _ in range(10)))

    assert len({id(each.result) for each in outcomes if isinstance(each, Settled)}) == 1
    assert len(model.requests) == 1


async def test_a_wait_is_told_to_those_who_do_not_sit_it_out(place: Place) -> None:
    session = await place.open()
    agent = agent_of(fail("overloaded", retryable=True, retry_after_ms=5_000), "done", retry=RetryPolicy(base_ms=10))
    lane = await session.lane("main", agent)
    admitted = await lane.accept(Prompt("hi"))

    waiting = await lane.drive(wait_for_retry=False)

    assert isinstance(waiting, Waiting) and waiting.operation_id == admitted.operation_id
    assert waiting.wake_at == place.clock.now_ms() + 5_000 == waiting.reasons[0].not_before
    assert (waiting.reasons[0].attempt, waiting.reasons[0].error.code) == (2, "overloaded")
    operation = lane.inspect().operation
    assert operation is not None and (operation.at, operation.not_before) == ("retry_wait", waiting.wake_at)
    assert not lane.inspect().driving, "the pass ends when nobody waits"
    assert await lane.drive(wait_for_retry=False) == waiting

    sitting = asyncio.ensure_future(lane.resume())
    await place.clock.sleeping()
    place.clock.advance_to_next()
    done = await sitting
    assert done is not None and done.text == "done" and done.usage.rows == 2 and done.usage.unknown_rows == 1


async def test_inspect_shows_each_call_of_a_batch(place: Place) -> None:
    session = await place.open()
    seen: list[Any] = []

    @tool(replay="idempotent")
    async def look(ctx: ToolContext) -> str:
        seen.append(lane.inspect())
        return "seen"

    lane = await session.lane("main", agent_of([call("look"), call("gone")], "done", tools=[look]))
    await lane.run("hi")

    (inspection,) = seen
    assert inspection.driving and inspection.operation.at == "tools" and inspection.operation.turn == 1
    first, second = inspection.operation.calls
    assert (first.tool, first.status, first.policy, first.attempt, first.replays) == (
        "look",
        "effect_pending",
        "idempotent",
        1,
        0,
    )
    assert (second.tool, second.status, second.policy) == ("gone", "outcome_ready", None)


async def test_open_operations_are_listed_oldest_first(place: Place) -> None:
    session = await place.open()
    agent = agent_of("done")
    for name in ("c", "a", "b"):
        lane = await session.lane(name, agent)
        await lane.accept(Prompt("hi"), operation_id=f"op-{name}")
        place.clock.advance(5)

    listed = [(each.operation_id, each.lane) for each in session.open_operations()]

    assert listed == [("op-c", "c"), ("op-a", "a"), ("op-b", "b")]
    assert [each.operation_id for each in await place.store.open_operations()] == ["op-c", "op-a", "op-b"]


# Abort.


async def test_an_abort_before_anything_started_asks_nobody(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["never"])
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("hi"))

    done = await lane.abort()

    assert (done.status, done.text, done.answer, done.turns, done.usage.rows) == ("aborted", "", None, 0, 0)
    assert model.requests == []


async def test_an_aborted_answer_keeps_what_was_shown_and_the_next_prompt_works(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel([hang("I was about to"), "done"])
    lane = await session.lane("main", Agent(model=model))
    await lane.accept(Prompt("hi"))
    driving = asyncio.ensure_future(lane.drive())
    await model.hanging()

    done = await lane.abort()

    assert done.status == "aborted" and (await driving) == Settled(done)
    answer = (await lane.entries(limit=1))[0].body
    assert answer.text == "I was about to" and answer.stop_reason == "aborted"  # type: ignore[union-attr]
    assert (await lane.run("go on")).text == "done"
    model.require_no_violations()


async def test_a_tool_may_ask_for_its_own_runs_abort(place: Place) -> None:
    session = await place.open()

    @tool
    async def stop(ctx: ToolContext) -> str:
        receipt = await lane.request_abort(ctx.operation_id)
        return f"{receipt.newly_requested} {ctx.cancelled}"

    model = ScriptedModel([[call("stop"), call("stop"), call("echo")], "never"])
    agent = Agent(model=model, tools=[stop, echo], max_parallel=1)
    lane = await session.lane("main", agent)

    done = await lane.run("hi")

    assert done.status == "aborted" and len(model.requests) == 1
    results = [each.body.text for each in await lane.entries(types=["tool_result"], newest_first=False)]  # type: ignore[union-attr]
    assert len(results) == 3 and results[1:] == ["The run was aborted before this call started. It had no effect."] * 2


# Configure.

SECOND = ModelIdentity(provider="scripted", name="second")


async def test_configure_sets_parts_of_the_lane_and_of_its_open_operation(place: Place) -> None:
    session = await place.open()
    first, second = ScriptedModel(["by first"]), ScriptedModel(["by second", "again"], identity=SECOND)
    agent = Agent(model=first, models=[second], tools=[echo], settings={"temperature": 1, "top": 2})
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("hi"))

    await lane.configure(model="scripted:second", settings={"temperature": 0})
    await lane.configure(tools=[])
    await lane.drive()

    (request,) = second.requests
    assert first.requests == [] and request.settings == {"temperature": 0, "top": 2} and request.tools == ()
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.configure(tools=["echo", "echo"])
    assert (await lane.run("hi")).text == "again"
    assert [each.name for each in second.requests[1].tools] == ["echo"]


@pytest.mark.parametrize("times", [1, 2])
async def test_an_answer_under_way_stays_that_of_the_model_that_was_asked(place: Place, times: int) -> None:
    session = await place.open()
    first, second = ScriptedModel([hang("by first")], deltas=2), ScriptedModel(["by second"], identity=SECOND)
    agent = Agent(model=first, models=[second])
    lane = await session.lane("main", agent)
    running = asyncio.ensure_future(lane.run("hi", operation_id="op"))
    await first.hanging()

    for _ in range(times):
        await lane.configure(model=SECOND)
    await session.close()
    with pytest.raises(SessionClosed):
        await running
    session = await place.open()
    lane = await session.lane("main", agent)
    assert (await lane.drive("op")).result.text == "by second"

    answers = [each.body for each in await lane.entries(types=["assistant"], newest_first=False)]
    assert [(each.text, each.model) for each in answers if isinstance(each, AssistantMessage)] == [
        ("by first", first.identity),
        ("by second", SECOND),
    ]
    assert [row.row.model for row in await session.usage()] == [str(first.identity), str(SECOND)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"model": "scripted:third"}, UnknownModel),
        ({"model": SECOND}, UnknownModel),
        ({"model": 5}, UnknownModel),
        ({"tools": ["ghost"]}, UnknownTool),
        ({"tools": "echo"}, UnknownTool),
        ({"settings": {"n": float("nan")}}, InvalidMessage),
        ({"settings": [1]}, InvalidMessage),
        ({"settings": "fast"}, InvalidMessage),
    ],
    ids=str,
)
async def test_a_configuration_that_cannot_work_is_refused_and_changes_nothing(
    options: dict[str, Any], error: Any, memory: Place
) -> None:
    session = await memory.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", Agent(model=model, tools=[echo]))

    with pytest.raises(error):
        await lane.configure(**options)

    await lane.run("hi")
    assert [each.name for each in model.requests[0].tools] == ["echo"] and model.requests[0].settings == {}


async def test_settings_that_are_changed_after_they_were_given_change_nothing(memory: Place) -> None:
    session = await memory.open()
    settings: dict[str, Any] = {"stop": ["a"]}
    model = ScriptedModel(["one", "two"])
    lane = await session.lane("main", Agent(model=model, settings=settings))
    await lane.configure(settings=settings)

    settings["stop"].append("b")
    await lane.run("hi")

    assert model.requests[0].settings == {"stop": ["a"]}


async def test_a_model_that_is_not_in_this_process_fails_the_run_and_not_the_session(place: Place) -> None:
    session = await place.open()
    second = ScriptedModel(["by second"], identity=SECOND)
    lane = await session.lane("main", Agent(model=ScriptedModel(["x"]), models=[second]))
    await lane.configure(model=SECOND)
    await lane.accept(Prompt("hi"))
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent_of("back"))
    done = await lane.resume()

    assert done is not None and (done.status, done.code) == ("failed", "model_unavailable")
    assert done.error is not None and "scripted:second" in done.error.message


@pytest.mark.parametrize("reopened", [False, True])
async def test_the_usage_of_a_result_is_that_of_its_requests_whoever_drives(place: Place, reopened: bool) -> None:
    """Adjustments are in the ledger and in the session's totals, not in the record of the operation that they name."""
    session = await place.open()
    lane = await session.lane("main", agent_of("done"))
    await lane.accept(Prompt("hi"), operation_id="op")
    await session.record_usage(Usage(cost_nanos=5), operation_id="op")
    if reopened:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent_of("done"))

    assert (await lane.drive("op")).result.usage.rows == 1
    assert session.stats().usage.rows == 2
