"""Checks of answers that end well: their order, what they hold, what they cost, and what goes back (M1-M5, M10-M13)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from agentlane.data.messages import (
    AssistantMessage,
    ModelIdentity,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.data.usage import Usage
from agentlane.model import ModelLimits, ModelRequest, ToolDefinition
from agentlane.testing.model_checks.bench import (
    TURNS,
    Bench,
    Breach,
    Lacking,
    ModelPlace,
    ProviderAnswer,
    a_request,
    ask,
    ask_in_turn,
    check,
    close,
)
from agentlane.testing.model_checks.frames import orderly

SIGNATURE = "Sg-check_0+/=="
TEXT = "Say \u2014 a \U0001f469\u200d\U0001f680 and\n\u2028more"
BOUND = 4321
"""Tokens: a number that stands nowhere else in a request."""

THINK = ThinkingPart(text="Let me think.", signature=SIGNATURE)
HIDDEN = ThinkingPart(text="", signature="Rd-check_1+/==", redacted=True)
CALLS = (
    ToolCallPart(id="call-check-1", name="look", arguments={"path": "a \U0001f600", "deep": [{"n": 1.5}, None, True]}),
    ToolCallPart(id="call-check-2", name="look", arguments={}),
)
SAID = TextPart(text=TEXT)


@check("M1", "M2", "M3")
async def an_answer_of_text(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(SAID,)))
    _same(orderly(given), (SAID,))
    _stops(given.whole(), "stop")


@check("M1", "M2", "M3")
async def an_answer_with_parallel_calls(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(TextPart(text="I look."), *CALLS), ends="tool_calls"))
    _same(orderly(given), (TextPart(text="I look."), *CALLS))
    _stops(given.whole(), "tool_calls")


@check("M1", "M2", "M3", needs=["thinking"])
async def an_answer_with_reasoning(bench: Bench) -> None:
    parts = (ThinkingPart(text=TEXT), SAID)
    given = await bench.once(ProviderAnswer(parts=parts))
    _same(tuple(_unsigned(part) for part in orderly(given)), parts)


@check("M3")
async def ids_that_repeat_or_are_empty(bench: Bench) -> None:
    calls = tuple(ToolCallPart(id=id, name="look", arguments={"n": n}) for n, id in enumerate(("same", "same", "")))
    given = await bench.once(ProviderAnswer(parts=calls, ends="tool_calls"))
    kept = given.whole("M3").calls
    if [(call.name, call.arguments) for call in kept] != [(call.name, call.arguments) for call in calls]:
        raise Breach("M3", f"calls whose ids repeat or are empty became {kept}")
    orderly(given)


@check("M3", needs=["raw_arguments"])
async def arguments_that_are_no_object(bench: Bench) -> None:
    for text in ('{"path": "a', "[1]", '{"a": 1}}'):
        call = ToolCallPart(id="1", name="look", arguments_text=text)
        given = await bench.once(ProviderAnswer(parts=(call,), ends="tool_calls"))
        kept = [(call.arguments, call.arguments_text) for call in given.whole("M3").calls]
        if kept != [(None, text)]:
            raise Breach("M3", f"arguments {text!r} became {kept}")
        orderly(given)


@check("M3", needs=["length"])
async def an_answer_that_was_cut_by_its_limit(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(SAID,), ends="length"))
    _same(orderly(given), (SAID,))
    _stops(given.whole(), "length")


@check("M4", needs=["thinking", "signatures"])
async def signatures_are_kept_whole(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(THINK, *CALLS), ends="tool_calls"))
    kept = [part.signature for part in orderly(given) if isinstance(part, ThinkingPart)]
    if len(kept) != 1 or SIGNATURE not in (kept[0] or ""):
        raise Breach("M4", f"the provider signed its reasoning with {SIGNATURE!r}, and {kept} was kept")


@check("M4", needs=["thinking", "redacted"])
async def reasoning_that_may_not_be_shown_is_kept(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(HIDDEN, SAID)))
    kept = [part for part in orderly(given) if isinstance(part, ThinkingPart)]
    if kept != [HIDDEN]:
        raise Breach("M4", f"redacted reasoning {HIDDEN} became {kept}")


@check("M4", needs=["thinking", "signatures"])
async def signatures_go_back_and_only_to_the_model_that_gave_them(bench: Bench) -> None:
    answers = (ProviderAnswer(parts=(THINK, CALLS[0]), ends="tool_calls"), *[ProviderAnswer(parts=(SAID,))] * 2)
    async with bench.place(*answers) as place:
        sent = _sent(place)
        first = (await ask(place.model)).whole("M4")
        own = replace(first, model=place.model.identity)
        reasoning = tuple(part for part in first.content if isinstance(part, ThinkingPart))
        foreign = replace(first, content=(*reasoning, CALLS[1]), model=ModelIdentity(provider="another", name="model"))
        for answer in (own, foreign):
            result = ToolResultMessage(call_id=answer.calls[0].id, name="look", content=(SAID,))
            (await ask(place.model, a_request(*a_request().messages, answer, result))).whole("M4")
        if SIGNATURE not in sent()[1]:
            raise Breach("M4", "an answer was sent back without the signature of its reasoning")
        if SIGNATURE in sent()[2]:
            raise Breach("M4", "a signature was sent to this model that another one had given")


@check("M5", needs=["usage"])
async def counts_are_those_that_were_given(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(SAID,), usage=Usage(input_tokens=1234, output_tokens=56)))
    usage = given.whole("M5").usage
    if usage is None or (usage.input_tokens, usage.output_tokens) != (1234, 56):
        raise Breach("M5", f"the provider counted 1234 and 56 tokens; the message says {usage}")


@check("M5", needs=["usage"])
async def counts_that_were_not_given_are_unknown(bench: Bench) -> None:
    usage = (await bench.once(ProviderAnswer(parts=(SAID,)))).whole("M5").usage
    if usage is not None and (usage.input_tokens is not None or usage.output_tokens is not None):
        raise Breach("M5", f"the provider counted nothing, and the message says {usage}")


@check("M1")
async def a_stream_that_has_ended_stays_ended(bench: Bench) -> None:
    async with bench.place(ProviderAnswer(parts=(SAID,))) as place:
        stream: Any = place.model.stream(a_request())
        async for _ in stream:
            pass
        for _ in range(2):
            try:
                item = await anext(stream)
            except StopAsyncIteration:
                continue
            raise Breach("M1", f"the stream had ended, and gave {item}")
        await close(stream)


@check("M10")
async def nothing_is_sent_before_it_is_asked_for(bench: Bench) -> None:
    async with bench.place(ProviderAnswer(parts=(SAID,))) as place:
        sent = _sent(place)
        stream: Any = place.model.stream(a_request())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if sent():
            raise Breach("M10", "stream() sent a request before its first item was asked for")
        async for _ in stream:
            pass
        await close(stream)
        if len(sent()) != 1:
            raise Breach("M10", f"one stream made {len(sent())} requests")


@check("M11")
async def the_request_is_not_changed(bench: Bench) -> None:
    result = ToolResultMessage(call_id=CALLS[0].id, name="look", content=(SAID,), details={"a": [1]})
    answer = AssistantMessage(content=(SAID, CALLS[0]), stop_reason="tool_calls")
    request = a_request(*a_request().messages, answer, result, UserMessage(content=(SAID,)))
    before = msgspec.json.encode(request)
    async with bench.place(*[ProviderAnswer(parts=(SAID,))] * 2) as place:
        for _ in range(2):
            (await ask(place.model, request)).whole("M11")
            if msgspec.json.encode(request) != before:
                raise Breach("M11", "the request, which later requests share, was changed")


@check("M11")
async def all_of_the_request_is_sent(bench: Bench) -> None:
    call = ToolCallPart(id="call-check-1", name="look", arguments={"path": "check_call"})
    request = replace(
        a_request(
            UserMessage(content=(TextPart(text="check_user"),)),
            AssistantMessage(content=(TextPart(text="check_said"), call), stop_reason="tool_calls"),
            ToolResultMessage(call_id=call.id, name="look", content=(TextPart(text="check_result"),)),
        ),
        instructions="Say check_instructions.",
    )
    parameters = {"type": "object", "properties": {"check_parameter": {"type": "string"}}}
    other = ToolDefinition(name="check_tool", description="Does check_description.", parameters=parameters)
    wanted = {
        "the instructions": "check_instructions",
        "what the user said": "check_user",
        "what the model said": "check_said",
        "the arguments of a call": "check_call",
        "the result of a call": "check_result",
        "the name of a tool": "check_tool",
        "the description of a tool": "check_description",
        "a parameter of a tool": "check_parameter",
    }
    sent = await _told(bench, replace(request, tools=(*request.tools, other)))
    missing = [what for what, word in wanted.items() if word not in sent]
    if missing:
        raise Breach("M11", f"{missing[0]} was not sent" if len(missing) == 1 else f"{missing} were not sent")


@check("M11", needs=["temperature"])
async def settings_are_sent(bench: Bench) -> None:
    if "0.625" not in await _told(bench, replace(a_request(), settings={"temperature": 0.625})):
        raise Breach("M11", "the setting temperature=0.625 was not sent")


@check("M12")
async def two_streams_in_turn(bench: Bench) -> None:
    parts = [(TextPart(text="the first"), CALLS[0]), (TextPart(text="another"), CALLS[1])]
    async with bench.place(*[ProviderAnswer(parts=each, ends="tool_calls") for each in parts]) as place:
        for given, each in zip(await ask_in_turn(place.model, 2), parts, strict=True):
            try:
                _same(orderly(given), each)
            except Breach as breach:
                raise Breach("M12", f"two streams, read in turn, disturb each other: {breach}") from breach


@check("M12")
async def two_streams_at_once(bench: Bench) -> None:
    parts = (TextPart(text="both"), CALLS[0])
    async with bench.place(*[ProviderAnswer(parts=parts, ends="tool_calls")] * 2) as place:
        for given in await asyncio.gather(ask(place.model), ask(place.model)):
            try:
                _same(orderly(given), parts)
            except Breach as breach:
                raise Breach("M12", f"two streams at once disturb each other: {breach}") from breach


@check("M12")
async def a_model_says_who_it_is(bench: Bench) -> None:
    async with bench.place() as place:
        model: Any = place.model
        if not (isinstance(model.identity, ModelIdentity) and isinstance(model.limits, ModelLimits)):
            raise Breach("M12", f"identity is {model.identity!r}, and limits are {model.limits!r}")
        if (model.identity, model.limits) != (model.identity, model.limits):
            raise Breach("M12", "identity or limits change each time they are asked for")


@check("M13", needs=["max_output_tokens"])
async def a_bound_on_the_answer_is_sent(bench: Bench) -> None:
    if str(BOUND) not in await _told(bench, replace(a_request(), max_output_tokens=BOUND), "M13"):
        raise Breach("M13", f"the answer may be {BOUND} tokens long, and that was not sent")


@check("M13")
async def a_summary_is_answered(bench: Bench) -> None:
    request = replace(
        a_request(UserMessage(content=(TextPart(text="<transcript>check_transcript</transcript>"),))),
        instructions="Summarize, and keep check_instructions.",
        tools=(),
        purpose="summary",
        max_output_tokens=BOUND,
    )
    async with bench.place(ProviderAnswer(parts=(SAID,))) as place:
        given = await ask(place.model, request)
        given.whole("M13")
        _same(orderly(given), (SAID,))
        sent = str(place.sent()[0]) if place.sent is not None else None
    for word in ("check_transcript", "check_instructions"):
        if sent is not None and word not in sent:
            raise Breach("M13", f"a summary was asked for, and {word!r} of its request was not sent")


def _same(got: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    if tuple(map(_bare, got)) != tuple(map(_bare, wanted)):
        raise Breach("M3", f"the provider sent {wanted}, and the message holds {got}")


def _bare(part: Any) -> Any:
    """The part without marks of the provider's, which an adapter may add to any."""
    return replace(part, signature=None) if hasattr(part, "signature") and not isinstance(part, ThinkingPart) else part


def _unsigned(part: Any) -> Any:
    return replace(part, signature=None) if isinstance(part, ThinkingPart) else part


def _stops(message: AssistantMessage, wanted: str) -> None:
    if message.stop_reason != wanted:
        raise Breach("M3", f"the provider stopped with {wanted!r}, and the message says {message.stop_reason!r}")


async def _told(bench: Bench, request: ModelRequest, rule: str = "M11") -> str:
    """What is sent of a request."""
    async with bench.place(ProviderAnswer(parts=(SAID,))) as place:
        sent = _sent(place)
        (await ask(place.model, request)).whole(rule)
        return str(sent()[0])


def _sent(place: ModelPlace) -> Any:
    if place.sent is None:
        raise Lacking("the place does not tell what was sent")
    return place.sent
