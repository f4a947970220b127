"""Checks of answers that go wrong: failures, streams that break off, cancellation, and closing (M6-M10)."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane.data.messages import (
    AssistantMessage,
    PartDelta,
    PartEnd,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UsageSeen,
)
from agentlane.data.usage import Usage
from agentlane.model import ModelError, StreamItem
from agentlane.testing.model_checks.answers import CALLS, SAID, THINK
from agentlane.testing.model_checks.bench import (
    Bench,
    Breach,
    Given,
    ProviderAnswer,
    a_request,
    ask,
    begin,
    check,
    close,
)
from agentlane.testing.model_checks.frames import orderly, shown_parts

WAIT_MS = 7_000
AGAIN = ProviderAnswer(parts=(TextPart(text="again"),))


@check("M6", "M10")
async def a_failure_is_told_and_not_tried_again_inside(bench: Bench) -> None:
    async with bench.place(ProviderAnswer(ends="overloaded"), AGAIN) as place:
        given = await ask(place.model)
        if not given.error and given.messages and given.messages[-1].text == "again":
            raise Breach("M10", "the provider was overloaded, and the model asked again by itself")
        _failed(given)
        if place.sent is not None and len(place.sent()) != 1:
            raise Breach("M10", f"one stream made {len(place.sent())} requests")
        await _again(place.model, "M6")


@check("M6", needs=["retry_after"])
async def a_wait_that_the_provider_asks_for_is_told(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(ends="overloaded", retry_after_ms=WAIT_MS))
    _failed(given)
    wait_ms = None if given.failure is None else given.failure[1]
    if wait_ms is None or not WAIT_MS <= wait_ms <= WAIT_MS + 1_000:
        raise Breach("M6", f"the provider asked to wait for {WAIT_MS} ms, and the failure says {wait_ms}")


@check("M6", needs=["streaming"])
async def a_failure_in_the_middle_keeps_what_was_shown(bench: Bench) -> None:
    given = await bench.once(ProviderAnswer(parts=(SAID,), half=True, ends="overloaded"))
    _failed(given)
    shown = "".join(frame.text for frame in given.frames if isinstance(frame, PartDelta))
    if shown != SAID.text:
        raise Breach("M6", f"the provider sent {SAID.text!r} and failed; the frames show {shown!r}")


@check("M6", needs=["usage"])
async def a_failure_in_the_middle_keeps_what_was_counted(bench: Bench) -> None:
    usage = Usage(input_tokens=1234, output_tokens=None)
    given = await bench.once(ProviderAnswer(parts=(SAID,), ends="overloaded", usage=usage))
    _failed(given)
    seen = [frame.usage for frame in given.frames if isinstance(frame, UsageSeen)]
    if isinstance(given.error, ModelError) and given.error.usage is not None:
        seen.append(given.error.usage)
    seen += [message.usage for message in given.messages if message.usage is not None]
    if not seen:
        return  # the provider counts at the end only, and there was none
    if seen[-1].output_tokens is not None:
        raise Breach("M5", f"the provider had not counted what it said, and the failure says {seen[-1]}")
    if seen[-1].input_tokens not in (1234, None):
        raise Breach("M6", f"the provider had counted 1234 tokens, and the failure says {seen[-1]}")


@check("M7")
async def a_stream_that_breaks_off_is_never_an_answer(bench: Bench) -> None:
    for answer in (
        ProviderAnswer(ends="cut"),
        ProviderAnswer(parts=(SAID,), half=True, ends="cut"),
        ProviderAnswer(parts=(SAID,), ends="cut"),
        ProviderAnswer(parts=(SAID, *CALLS), ends="cut"),
    ):
        await _cut(bench, answer)


@check("M7")
async def a_call_that_was_not_whole_has_no_arguments(bench: Bench) -> None:
    half = ToolCallPart(id="1", name="look", arguments_text='{"path": "a"}')
    given = await _cut(bench, ProviderAnswer(parts=(SAID, half), half=True, ends="cut"))
    parts = [frame.part for frame in given.frames if isinstance(frame, PartEnd)]
    parts += [part for message in given.messages for part in message.content]
    if any(isinstance(part, ToolCallPart) and part.arguments is not None for part in parts):
        raise Breach("M7", "a call whose end never came has arguments")


@check("M7", needs=["thinking", "signatures"])
async def reasoning_that_was_not_whole_has_no_signature(bench: Bench) -> None:
    given = await _cut(bench, ProviderAnswer(parts=(THINK,), half=True, ends="cut"))
    parts = [frame.part for frame in given.frames if isinstance(frame, PartEnd)]
    parts += [part for message in given.messages for part in message.content]
    if any(isinstance(part, ThinkingPart) and part.signature is not None for part in parts):
        raise Breach("M7", "reasoning whose end never came has a signature")


@check("M8")
async def a_cancelled_request_ends_with_the_cancellation(bench: Bench) -> None:
    await _cancelled(bench, ProviderAnswer(ends="hang"), 0)


@check("M8", needs=["streaming"])
async def a_cancelled_stream_ends_with_the_cancellation(bench: Bench) -> None:
    await _cancelled(bench, ProviderAnswer(parts=(SAID,), half=True, ends="hang"), 1)


@check("M9")
async def a_stream_that_is_closed_gives_nothing_more(bench: Bench) -> None:
    async with bench.place(ProviderAnswer(parts=(SAID, *CALLS), ends="tool_calls"), AGAIN) as place:
        stream: Any = place.model.stream(a_request())
        await anext(stream)
        if not hasattr(stream, "aclose"):
            return  # then nobody closes it, and the library lets it go
        await close(stream)
        await close(stream)
        try:
            item = await anext(stream)
        except StopAsyncIteration:
            pass
        except Exception as error:
            raise Breach("M9", f"a closed stream raised {error!r}") from error
        else:
            raise Breach("M9", f"a closed stream gave {item}")
        await _again(place.model, "M9")


async def _cancelled(bench: Bench, answer: ProviderAnswer, count: int) -> None:
    async with bench.place(answer, AGAIN) as place:
        items: list[StreamItem] = []
        task = await begin(place, items, count)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            error = task.exception()
            raise Breach("M8", f"a stream was cancelled, and {f'raised {error!r}' if error else 'ended by itself'}")
        if any(isinstance(item, AssistantMessage) for item in items):
            raise Breach("M8", "a stream whose provider says nothing more gave a settled message")
        await _again(place.model, "M8")


async def _cut(bench: Bench, answer: ProviderAnswer) -> Given:
    """What a stream gave that broke off so; raises ``Breach`` if it passes for an answer."""
    given = await bench.once(answer)
    shown_parts(given.frames)
    for message in given.messages:
        if message.stop_reason not in ("error", "aborted"):
            raise Breach(
                "M7", f"the connection broke off, and the answer ended with {message.stop_reason!r}: {message}"
            )
    if isinstance(given.error, ModelError) and not given.error.retryable:
        raise Breach("M7", f"the connection broke off, which passes by itself, and the failure is final: {given.error}")
    if given.error is not None and not isinstance(given.error, ModelError | OSError):
        raise Breach("M6", f"the connection broke off, and the stream raised {given.error!r}, which is no ModelError")
    return given


def _failed(given: Given) -> None:
    """Raise ``Breach`` unless an overloaded provider became a failure that may be tried again."""
    failure = given.failure
    if failure is None:
        told = repr(given.error) if given.error else f"{given.messages}"
        raise Breach("M6", f"the provider was overloaded, which became {told} and no ModelError")
    if not failure[0]:
        raise Breach("M6", "the provider was overloaded, which passes by itself, and the failure is final")
    shown_parts(given.frames)


async def _again(model: Any, rule: str) -> None:
    """The model answers as if nothing had been."""
    given = await ask(model)
    given.whole(rule)
    if [part.text for part in orderly(given) if isinstance(part, TextPart)] != ["again"]:
        raise Breach(rule, f"the next answer is {given.messages}")
