"""A model that plays back a recorded conversation."""

from __future__ import annotations

from collections.abc import Iterable

from agentlane.clock import Clock
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    ModelIdentity,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserMessage,
)
from agentlane.errors import InvalidDefinition
from agentlane.model import ModelLimits, ModelRequest
from agentlane.testing.places import index_in_step, place_in_turns, steps
from agentlane.testing.playback import PlayedModel, ScriptExhausted
from agentlane.testing.script import Answer, Half, Hangs, ScriptPart, Settles
from agentlane.testing.summaries import Summaries, SummaryAnswers


class RecordedModel(PlayedModel):
    """Gives the answers of a recorded conversation, each at its place there.

    The place is found from the request alone: the number of user messages in it, and the number of answers since the
    last one. So the same request gets the same answer, in any process. What the tools returned is not looked at, nor
    who gave the answers: one that the test appends itself counts like one that was played.

    - An answer that was recorded as ``aborted`` shows what it holds and then hangs; the test aborts there (see
      ``hanging()``). A last part that was still arriving is shown without its end: text and thinking without
      signature, and a call without arguments.
    - One recorded as ``error`` shows what it holds in the same way and settles with the recorded message. It is
      retryable if it was recorded so, and attempt 2 then gets what was recorded behind it.
    - All others settle with the recorded message: parts, stop reason and usage as they are.

    What a summary in front of the messages stands for counts as if it were shown, so a conversation that was compacted
    goes on as it was recorded. Summaries themselves are given by ``summaries``, as with ``ScriptedModel``.

    A request for which nothing is recorded raises ``ScriptExhausted``. See ``PlayedModel`` for the rest.
    """

    def __init__(
        self,
        conversation: Iterable[Message],
        *,
        identity: ModelIdentity | None = None,
        summaries: Summaries | None = None,
        limits: ModelLimits | None = None,
        deltas: int | None = None,
        delta_ms: int = 0,
        clock: Clock | None = None,
        check_pairs: bool = True,
    ) -> None:
        super().__init__(
            identity=identity or ModelIdentity(provider="recorded", name="recorded"),
            limits=limits,
            deltas=deltas,
            delta_ms=delta_ms,
            clock=clock,
            check_pairs=check_pairs,
        )
        self._summaries = SummaryAnswers(summaries)
        turns: list[list[Answer]] = [[]]
        for message in conversation:
            if isinstance(message, UserMessage):
                turns.append([])
            elif isinstance(message, AssistantMessage):
                turns[-1].append(_as_played(message))
        self._turns = []
        start = 0
        for turn in turns:
            self._turns.append(steps(turn, start=start))
            start += len(turn)

    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        if request.purpose == "summary":
            return self._summaries.find(request)
        place = place_in_turns(request.messages, None, request.stands_for)
        turn = self._turns[place.turn] if place.turn < len(self._turns) else ()
        if place.answers >= len(turn):
            raise ScriptExhausted(
                f"nothing is recorded behind user message {place.turn} and {place.answers} answers to it; "
                f"the recording has {len(self._turns) - 1} user messages"
            )
        step = turn[place.answers]
        index = index_in_step(step, place, request, None, 0).index
        return step.answers[index], str(step.start + index + 1)


def _as_played(message: AssistantMessage) -> Answer:
    parts: tuple[ScriptPart, ...] = message.content
    if message.stop_reason in ("aborted", "error") and message.content:
        parts = (*message.content[:-1], _as_far_as_it_came(message.content[-1]))
    if message.stop_reason == "aborted":
        return Answer(parts=parts, ending=Hangs(), usage=message.usage)
    if message.stop_reason == "error" and message.error is None:
        raise InvalidDefinition("a recorded answer has the stop reason 'error' and does not say which error")
    return Answer(
        parts=parts,
        ending=Settles(stop_reason=message.stop_reason, error=message.error),
        usage=message.usage,
        model=message.model,
    )


def _as_far_as_it_came(part: AssistantPart) -> ScriptPart:
    match part:
        case ToolCallPart(arguments=None) | TextPart(signature=None) | ThinkingPart(signature=None, redacted=False):
            return Half(part=part)
        case _:
            return part
