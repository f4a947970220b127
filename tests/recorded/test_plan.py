"""Claim: the recorded session is read whole, and its plan holds every message of it once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    Message,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.testing.pair import check_pairing
from agentlane.testing.recorded import RecordedModel
from tests.recorded.loader import VARIABLE, load, message_of, nanos, recorded_session
from tests.recorded.plan import Append, CallPlace, Plan, Run, batch_place, plan_of
from tests.testing.conversation import Conversation, interrupt, take


@pytest.fixture(scope="module")
def session() -> tuple[Message, ...]:
    return recorded_session()


@pytest.fixture(scope="module")
def plan(session: tuple[Message, ...]) -> Plan:
    return plan_of(session)


def answers(session: tuple[Message, ...], *stop_reasons: StopReason) -> list[AssistantMessage]:
    return [each for each in session if isinstance(each, AssistantMessage) and each.stop_reason in stop_reasons]


# The recording itself.


def test_the_session_holds_what_it_is_said_to_hold(session: tuple[Message, ...]) -> None:
    assert Counter(type(message) for message in session) == {
        UserMessage: 88,
        AssistantMessage: 453,
        ToolResultMessage: 373,
    }
    reasons = Counter(message.stop_reason for message in session if isinstance(message, AssistantMessage))
    assert reasons == {"tool_calls": 366, "stop": 65, "aborted": 21, "error": 1}
    assert sum(not message.content for message in answers(session, "aborted")) == 14
    assert max(len(message.text) for message in session if not isinstance(message, UserMessage)) // 1_000 == 43


def test_calls_that_were_half_received_have_their_text_only(session: tuple[Message, ...]) -> None:
    [failed] = answers(session, "error")
    half = [
        call
        for message in answers(session, "tool_calls", "stop", "aborted", "error")
        for call in message.calls
        if call.arguments is None
    ]

    assert len(failed.calls) == 16
    assert len(half) == 3 and failed.calls[-1] is half[0]
    assert all(call.arguments_text and call.arguments_text.startswith("{") for call in half)
    assert failed.error is not None and (failed.error.code, failed.error.retryable) == ("model_error", False)


def test_thinking_and_details_and_errors_are_there(session: tuple[Message, ...]) -> None:
    thinking = [
        part
        for message in session
        if isinstance(message, AssistantMessage)
        for part in message.content
        if isinstance(part, ThinkingPart)
    ]
    results = [message for message in session if isinstance(message, ToolResultMessage)]

    assert len(thinking) == 1 and thinking[0].signature
    assert sum(result.is_error for result in results) == 19
    assert sum(result.details is not None for result in results) == 147
    assert Counter(result.name for result in results) == {"bash": 192, "edit": 128, "read": 50, "write": 3}


def test_usage_is_known_but_for_empty_aborted_answers(session: tuple[Message, ...]) -> None:
    unknown = [message for message in session if isinstance(message, AssistantMessage) and message.usage is None]

    assert len(unknown) == 14 and not any(message.content for message in unknown)


def test_what_is_sent_of_the_session_pairs_up(session: tuple[Message, ...]) -> None:
    sent = [message for message in session if message not in answers(session, "error", "aborted")]

    assert check_pairing(sent) == []
    assert check_pairing(session) != []


# Its plan.


def test_the_plan_has_one_run_for_each_prompt_and_says_how_it_ends(plan: Plan) -> None:
    assert [run.turn for run in plan.runs] == list(range(1, 89))
    assert Counter(run.ending for run in plan.runs) == {"completed": 64, "aborted": 21, "failed": 1, "terminated": 2}
    appended = [number for number, step in enumerate(plan.steps) if isinstance(step, Append)]
    assert len(appended) == 1
    before = plan.steps[appended[0] - 1]
    assert isinstance(before, Run) and before.ending == "completed"


def test_the_steps_laid_end_to_end_are_the_recording(plan: Plan, session: tuple[Message, ...]) -> None:
    laid: list[Message] = []
    for step in plan.steps:
        if isinstance(step, Append):
            laid.append(step.message)
            continue
        laid.append(step.prompt)
        for each in step.answers:
            laid += [each.message, *each.results]

    assert tuple(laid) == session


def test_each_result_is_found_by_its_place_and_by_its_id(plan: Plan, session: tuple[Message, ...]) -> None:
    assert len(plan.results) == len(plan.places) == 373
    for position, message in enumerate(session):
        if isinstance(message, AssistantMessage) and message.stop_reason == "tool_calls":
            turn, answer = batch_place(session[: position + 1])
            for call, part in enumerate(message.calls):
                assert plan.places[part.id] == CallPlace(turn, answer, call)
                assert plan.results[CallPlace(turn, answer, call)].call_id == part.id


def test_name_and_arguments_would_not_find_a_result(session: tuple[Message, ...]) -> None:
    asked = Counter(
        (call.name, str(call.arguments)) for message in answers(session, "tool_calls") for call in message.calls
    )

    assert max(asked.values()) > 1


def test_batches_that_terminate_are_those_with_a_prompt_behind_them(plan: Plan, session: tuple[Message, ...]) -> None:
    behind = [
        batch_place(session[: position + 1])
        for position, message in enumerate(session[:-1])
        if isinstance(message, ToolResultMessage) and isinstance(session[position + 1], UserMessage)
    ]

    assert len(behind) == 2
    assert {place[:2] for place in plan.terminating} == set(behind)


async def test_the_plan_played_by_hand_gives_the_recording(plan: Plan, session: tuple[Message, ...]) -> None:
    model = RecordedModel(session, deltas=200)
    conversation = Conversation()
    for step in plan.steps:
        if isinstance(step, Append):
            conversation.add(step.message)
            continue
        conversation.operations += 1
        conversation.add(step.prompt)
        for each in step.answers:
            if each.message.stop_reason == "aborted":
                await interrupt(model, conversation)
                continue
            got = await take(model, conversation.request())
            assert got.message == each.message
            if each.message.stop_reason != "error":
                conversation.add(each.message, *each.results)

    assert len(model.requests) == 452
    model.require_no_violations()


# The reader and the planner, without the recording.


def test_without_a_path_the_tests_are_skipped_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match=VARIABLE):
        recorded_session()


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0, 0), (0.1 + 0.2, 300_000_000), (1.5e-08, 15), (5e-10, 0), (1.5e-09, 2), (0.1234567891, 123_456_789)],
)
def test_costs_become_whole_billionths(cost: float, expected: int) -> None:
    assert nanos(cost) == expected


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "surprise"}',
        '{"type": "message", "message": {"role": "system", "content": []}}',
        '{"type": "message", "message": {"role": "user", "content": [{"type": "image"}]}}',
    ],
)
def test_what_the_reader_does_not_know_is_an_error_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text('{"type": "session"}\n' + line + "\n", encoding="utf-8")

    with pytest.raises(ValueError, match="line 2"):
        load(path)


@pytest.mark.parametrize(
    ("partial", "arguments", "text"),
    [('{"a": 1}', {"a": 1}, None), ('{"a": 1', None, '{"a": 1'), ('{"a": 2}', None, '{"a": 2}'), ("", None, "")],
)
def test_a_call_whose_text_is_not_its_arguments_was_half_received(
    partial: str, arguments: dict[str, int] | None, text: str | None
) -> None:
    usage = {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}
    part = {"type": "toolCall", "id": "x", "name": "edit", "arguments": {"a": 1}, "partialJson": partial}
    row = {
        "role": "assistant",
        "content": [part],
        "stopReason": "aborted",
        "usage": usage,
        "provider": "p",
        "model": "m",
    }
    message = message_of(row)

    assert isinstance(message, AssistantMessage)
    assert message.calls == (ToolCallPart(id="x", name="edit", arguments=arguments, arguments_text=text),)


def says(text: str, stop_reason: StopReason = "stop") -> AssistantMessage:
    return AssistantMessage(content=(TextPart(text=text),), stop_reason=stop_reason)


def calls(*ids: str) -> AssistantMessage:
    parts = tuple(ToolCallPart(id=each, name="read", arguments={}) for each in ids)
    return AssistantMessage(content=parts, stop_reason="tool_calls")


def result(call_id: str) -> ToolResultMessage:
    return ToolResultMessage(call_id=call_id, name="read", content=(TextPart(text="fine"),))


@pytest.mark.parametrize(
    "conversation",
    [
        [says("no prompt")],
        [user("x")],
        [user("x"), result("a")],
        [user("x"), calls("a", "b"), result("a")],
        [user("x"), calls("a", "b"), result("b"), result("a")],
        [user("x"), calls("a"), result("a"), user("y"), calls("a"), result("a")],
        [user("x"), says("end"), calls("a"), result("a")],
        [user("x"), says("end"), says("half", "aborted")],
    ],
)
def test_a_recording_that_cannot_be_played_is_refused(conversation: list[Message]) -> None:
    with pytest.raises(ValueError):
        plan_of(conversation)


def test_the_place_of_a_batch_passes_over_answers_that_went_wrong() -> None:
    conversation: list[Message] = [
        user("x"),
        says("half", "error"),
        calls("a"),
        result("a"),
        says("half", "error"),
        calls("b"),
    ]

    assert batch_place(conversation) == (1, 1)
