"""Claim: a scripted model answers in order, wherever the conversation stands, in any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    ModelIdentity,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ToolCallPart,
    user,
)
from agentlane.model import ModelError
from agentlane.testing.models import ScriptedModel
from agentlane.testing.playback import ScriptExhausted
from agentlane.testing.script import (
    Answer,
    answer,
    call,
    cut,
    fail,
    hang,
    raises,
    say,
    think,
)
from tests.testing.conversation import Conversation, interrupt, results_of, take

Build = Callable[[], ScriptedModel]


# Where the conversation stands. Each test builds the model anew before each request ("killed"), or keeps it.


@pytest.fixture(params=["same process", "new process for each request"])
def build(request: pytest.FixtureRequest) -> Callable[..., Build]:
    """Makes `build(script)` into a source of models: always the same one, or always a new one."""

    def of(*args: Any, **options: Any) -> Build:
        if request.param == "same process":
            model = ScriptedModel(*args, **options)
            return lambda: model
        return lambda: ScriptedModel(*args, **options)

    return of


async def test_answers_come_in_order(build: Callable[..., Build]) -> None:
    model = build([[call("read")], [call("list"), call("read")], "done", "more", [call("x")], "end"])
    conversation = Conversation()

    assert await conversation.say(model(), "hello") == "read"
    assert (await conversation.ask(model())).said == "list+read"
    assert (await conversation.ask(model())).said == "done"
    assert await conversation.say(model(), "more?") == "more"
    assert await conversation.say(model(), "go") == "x"
    assert (await conversation.ask(model())).said == "end"


async def test_an_attempt_that_was_interrupted_is_answered_the_same_again(build: Callable[..., Build]) -> None:
    model = build(["one", [call("read")], "two"])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    conversation.prompt("again")

    lost = [await take(model(), conversation.request()) for _ in range(3)]  # nothing of it is committed
    assert [got.said for got in lost] == ["read"] * 3
    assert (await conversation.ask(model())).said == "read"
    assert (await take(model(), conversation.request())).said == "two"
    assert (await conversation.ask(model())).said == "two"


async def test_a_retry_gets_the_next_answer_of_the_step(build: Callable[..., Build]) -> None:
    model = build([fail("a", retryable=True), cut("Hel"), "one", [call("read")], fail("b", retryable=True), "two"])
    conversation = Conversation()
    conversation.prompt("hello")

    assert [(await conversation.ask(model())).said for _ in range(3)] == ["<a>", "<cut>", "one"]
    assert await conversation.say(model(), "again") == "read"
    assert [(await conversation.ask(model())).said for _ in range(2)] == ["<b>", "two"]


async def test_a_failure_is_given_once_also_when_the_process_dies_in_between(build: Callable[..., Build]) -> None:
    model = build([[call("read")], fail("a", retryable=True), "one"])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    assert (await take(model(), conversation.request())).said == "<a>"

    assert (await take(model(), conversation.request())).said == "one"  # lost
    assert (await conversation.ask(model())).said == "one"


async def test_hang_is_for_a_kill_and_for_an_abort(build: Callable[..., Build]) -> None:
    killed, aborted = Conversation(lane="a"), Conversation(lane="b")
    model = build(["one", hang("half"), "two", "three"])
    for conversation in (killed, aborted):
        await conversation.say(model(), "hello")
        conversation.prompt("again")
        came = await interrupt(model(), conversation)
        assert came == [PartStart(index=0, kind="text"), PartEnd(index=0, part=TextPart(text="half"))]

    assert (await killed.ask(model())).said == "two"  # restarted: attempt 2 of the same turn
    assert await aborted.say(model(), "something else") == "two"
    for conversation in (killed, aborted):
        assert await conversation.say(model(), "more") == "three"


async def test_the_last_answer_of_a_script_may_be_asked_for_again(build: Callable[..., Build]) -> None:
    model = build(["one", hang("half")])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    conversation.prompt("again")

    assert await interrupt(model(), conversation) == await interrupt(model(), conversation)


async def test_operations_that_end_without_an_answer_each_use_up_theirs(build: Callable[..., Build]) -> None:
    model = build(
        [fail("a"), raises(KeyError("b")), hang(), "", answer("", stop_reason="length"), "one", fail("c"), "two"]
    )
    conversation = Conversation()

    assert await conversation.say(model(), "1") == "<a>"
    assert await conversation.say(model(), "2") == "<KeyError>"
    conversation.prompt("3")
    await interrupt(model(), conversation)
    assert await conversation.say(model(), "4") == "<empty>"
    assert await conversation.say(model(), "5") == "<empty>"
    assert await conversation.say(model(), "6") == "one"
    assert await conversation.say(model(), "7") == "<c>"
    assert await conversation.say(model(), "8") == "two"


@pytest.mark.parametrize(
    ("script", "again"),
    [
        (fail("x", retryable=True), True),
        (fail("x"), False),
        (raises(ModelError(retryable=True)), True),
        (raises(TimeoutError()), True),
        (raises(ValueError()), False),
        (cut(), True),
        (hang(), False),
        (answer("", stop_reason="error", error=ErrorInfo(code="x", message="y", retryable=True)), True),
        (answer("", stop_reason="error", error=ErrorInfo(code="x", message="y")), False),
        (answer("half", stop_reason="aborted"), True),
        (answer(""), False),
    ],
)
async def test_after_a_restart_it_is_known_which_answers_end_an_operation(script: Answer, again: bool) -> None:
    conversation = Conversation()
    conversation.prompt("hello")
    conversation.prompt("another operation, or a second message of the same")

    # Had the first been asked about, it would have been asked until "kept"; so it was not, unless `script` ended it.
    kept = (await conversation.ask(ScriptedModel([script, "kept"]))).said == "kept"
    assert kept is not again


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([say("")], False),
        ([], False),
        ([say(""), say("a")], True),
        ([think("")], True),
        ([call("read")], True),
        ([ProviderPart(provider="p", data=None)], True),
    ],
)
def test_an_answer_is_kept_as_the_library_keeps_it(parts: list[Any], kept: bool) -> None:
    assert answer(parts).kept is kept
    assert answer(parts, stop_reason="length").kept is kept
    assert not answer(parts, stop_reason="aborted").kept


async def test_an_operation_uses_up_three_attempts(build: Callable[..., Build]) -> None:
    model = build([*[fail(f"f{n}", retryable=True) for n in range(5)], "one"])
    conversation = Conversation()
    conversation.prompt("hello")
    assert [(await conversation.ask(model())).said for _ in range(3)] == ["<f0>", "<f1>", "<f2>"]
    conversation.prompt("again")

    assert [(await conversation.ask(model())).said for _ in range(3)] == ["<f3>", "<f4>", "one"]


async def test_prompts_of_several_messages_and_steering_do_not_move_the_place(build: Callable[..., Build]) -> None:
    model = build([[call("read")], fail("a", retryable=True), "one", "two"])
    conversation = Conversation()

    assert await conversation.say(model(), "hello", "and hello") == "read"
    conversation.add(user("steered"), user("twice"))
    assert [(await conversation.ask(model())).said for _ in range(2)] == ["<a>", "one"]
    assert await conversation.say(model(), "more", "and more") == "two"


async def test_in_one_process_a_prompt_behind_a_terminated_batch_is_not_guessed_at() -> None:
    model = ScriptedModel([[call("finish")], hang(), "one"])
    conversation = Conversation()
    await conversation.say(model, "hello")
    conversation.prompt("again")  # the batch said terminate: nobody was asked about its results

    await interrupt(model, conversation)
    assert await conversation.say(model, "more") == "one"


async def test_in_one_process_what_was_given_is_remembered_also_over_a_restart_of_the_turn() -> None:
    model = ScriptedModel([[call("finish")], hang(), hang("b"), "one"])
    conversation = Conversation()
    await conversation.say(model, "hello")
    conversation.prompt("again")
    await interrupt(model, conversation)

    assert len(await interrupt(model, conversation)) == 2
    assert (await conversation.ask(model)).said == "one"


async def test_an_operation_that_ends_behind_its_tools_uses_up_its_answer(build: Callable[..., Build]) -> None:
    model = build([[call("read")], fail("a"), "one"])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    assert (await conversation.ask(model())).said == "<a>"

    assert await conversation.say(model(), "again") == "one"


async def test_a_new_operation_counts_from_its_own_first_attempt(build: Callable[..., Build]) -> None:
    model = build([fail("a"), fail("b"), fail("c"), "one"])
    conversation = Conversation()
    assert await conversation.say(model(), "hello") == "<a>"
    conversation.prompt("again")
    conversation.attempt = 1  # the process died before the model was asked

    assert (await conversation.ask(model())).said == "<c>"


async def test_a_further_turn_of_an_operation_counts_from_its_own_first_attempt(build: Callable[..., Build]) -> None:
    model = build(["", "one"])
    conversation = Conversation()
    assert await conversation.say(model(), "hello") == "<empty>"
    conversation.add(user("a follow-up, in the same operation"))

    assert (await conversation.ask(model())).said == "one"


async def test_by_turns_answers_of_others_do_not_count(build: Callable[..., Build]) -> None:
    model = build(turns=[["one"]])
    other = ScriptedModel([[call("read")]], identity=ModelIdentity(provider="other", name="m"))
    conversation = Conversation()
    await conversation.say(other, "hello")

    assert (await conversation.ask(model())).said == "one"


async def test_answers_of_others_do_not_count(build: Callable[..., Build]) -> None:
    model = build(["one", "two"])
    other = ScriptedModel(["other one", "other two"], identity=ModelIdentity(provider="other", name="m"))
    conversation = Conversation()
    await conversation.say(model(), "hello")
    conversation.add(AssistantMessage(content=(TextPart(text="appended"),), stop_reason="stop"))

    assert await conversation.say(other, "other?") == "other one"
    assert await conversation.say(model(), "again") == "two"
    assert await conversation.say(other, "other?") == "other two"


async def test_each_conversation_goes_through_the_script_on_its_own(build: Callable[..., Build]) -> None:
    model = build([fail("a", retryable=True), "one", "two"])
    conversations = [Conversation(lane="a"), Conversation(lane="b"), Conversation(session_id="t", lane="a")]
    for conversation in conversations:
        conversation.prompt("hello")

    for expected in ("<a>", "one"):
        assert [(await each.ask(model())).said for each in conversations] == [expected] * 3
    assert [await each.say(model(), "again") for each in conversations] == ["two"] * 3


async def test_the_same_call_has_the_same_id_and_no_other_call_has_it(build: Callable[..., Build]) -> None:
    script = [[call("read"), call("read")], fail("a", retryable=True), [call("read")], "done"]
    model = build(script)
    conversation = Conversation()
    conversation.prompt("hello")
    lost = (await take(model(), conversation.request())).message
    kept = (await conversation.ask(model())).message
    await conversation.ask(model())
    other = (await conversation.ask(model())).message

    assert lost is not None and kept is not None and other is not None
    assert lost == kept
    assert [each.id for each in (*kept.calls, *other.calls)] == ["call_1_1", "call_1_2", "call_3_1"]


async def test_a_request_beyond_the_script_is_refused_and_noted(build: Callable[..., Build]) -> None:
    model = build(["one"])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    conversation.prompt("again")
    last = model()
    got = await conversation.ask(last)

    assert isinstance(got.raised, ScriptExhausted)
    assert "holds 1 answers of scripted:scripted" in str(got.raised)
    with pytest.raises(AssertionError, match="used up"):
        last.require_no_violations()


# Turns.


async def test_by_turns_each_user_message_has_its_own_answers(build: Callable[..., Build]) -> None:
    model = build(
        turns=[[fail("a")], [[call("read")], fail("b", retryable=True), "two"], [], ["four"], [hang()], ["six"]]
    )
    conversation = Conversation()

    assert await conversation.say(model(), "1") == "<a>"
    assert await conversation.say(model(), "2") == "read"
    assert [(await conversation.ask(model())).said for _ in range(2)] == ["<b>", "two"]
    assert await conversation.say(model(), "3", "4") == "four"
    conversation.prompt("5")
    await interrupt(model(), conversation)
    await interrupt(model(), conversation)  # killed and restarted: nothing else is there, so it hangs again
    assert await conversation.say(model(), "6") == "six"


async def test_by_turns_a_prompt_behind_a_terminated_batch_is_no_riddle(build: Callable[..., Build]) -> None:
    model = build(turns=[[[call("finish")]], [hang(), "one"]])
    conversation = Conversation()
    await conversation.say(model(), "hello")
    conversation.prompt("again")

    await interrupt(model(), conversation)
    assert (await conversation.ask(model())).said == "one"


async def test_by_turns_ids_are_unique_over_all_turns() -> None:
    model = ScriptedModel(turns=[[[call("read")], "x"], [[call("read")], "y"]])
    conversation = Conversation()
    for prompt in ("1", "2"):
        await conversation.say(model, prompt)
        await conversation.ask(model)

    ids = [
        each.id for message in conversation.messages if isinstance(message, AssistantMessage) for each in message.calls
    ]
    assert ids == ["call_1_1", "call_3_1"]


async def test_by_turns_a_user_message_too_many_is_refused() -> None:
    model = ScriptedModel(turns=[["one"]])
    conversation = Conversation()
    await conversation.say(model, "hello")
    conversation.prompt("again")
    got = await conversation.ask(model)

    assert isinstance(got.raised, ScriptExhausted)
    assert "1 turns and no answer for user message 2" in str(got.raised)


def test_results_of_a_conversation_kept_by_hand_pair_up() -> None:
    message = AssistantMessage(content=(ToolCallPart(id="a", name="read", arguments={}),), stop_reason="tool_calls")

    assert [result.call_id for result in results_of(message)] == ["a"]
