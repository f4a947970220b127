"""What scripted and recorded models answer where the library asks for a summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TypeAlias

from agentlane.data.messages import AssistantMessage, Message, TextPart, ThinkingPart, ToolCallPart
from agentlane.errors import InvalidDefinition
from agentlane.model import ModelRequest
from agentlane.testing.script import Answer, ScriptAnswer, arguments_text, as_answer

Summaries: TypeAlias = str | Answer | Sequence[ScriptAnswer] | Callable[[ModelRequest], ScriptAnswer]
"""What a model gives for summaries: one answer for each, answers by attempt, or a function of the request."""


class SummaryAnswers:
    """Finds the answer to a request for a summary, from the request alone.

    - A text, or a whole answer, is given each time.
    - A list holds the answers of *each* summary by attempt: attempt 1 gets the first, attempt 2 the second, and the
      last is given as often as it is asked for.
    - A function is called with the request and gives the answer.
    - None gives a text that is made of the request: the same request, the same text.

    So a model that is built anew gives what the one before it would have. What distinguishes one summary from another
    is in the request: its message holds what is to be summarized.
    """

    def __init__(self, given: Summaries | None) -> None:
        self._function: Callable[[ModelRequest], ScriptAnswer] = _made_of_the_request
        if isinstance(given, str | Answer):
            given = [given]
        if callable(given):
            self._function = given
        elif given is not None:
            answers = [as_answer(_checked(each)) for each in given]
            if not answers:
                raise InvalidDefinition("summaries=[] holds no answer; leave it out for texts made of the request")
            self._function = lambda request: answers[min(max(request.attempt, 1), len(answers)) - 1]

    def find(self, request: ModelRequest) -> tuple[Answer, str]:
        """The answer, and a label for the ids of calls in it."""
        return as_answer(self._function(request)), f"summary_{_digest(request)}_{request.attempt}"


def characters(messages: Sequence[Message]) -> int:
    """How many characters of text the messages hold."""
    return sum(map(len, _texts(messages)))


def _checked(given: ScriptAnswer) -> ScriptAnswer:
    if not isinstance(given, str | Answer | list | tuple):
        raise InvalidDefinition(
            f"summaries= holds a {type(given).__name__}; it is a list of answers, and the parts of one are a list in it"
        )
    return given


def _made_of_the_request(request: ModelRequest) -> str:
    return f"Summary of {characters(request.messages)} characters ({_digest(request)})."


def _digest(request: ModelRequest) -> str:
    text = "\0".join([request.instructions, *_texts(request.messages)])
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]


def _texts(messages: Sequence[Message]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        for part in message.content:
            match part:
                case TextPart() | ThinkingPart():
                    texts.append(part.text)
                case ToolCallPart() if isinstance(message, AssistantMessage):
                    told = part.arguments_text
                    texts += [part.name, arguments_text(part.arguments or {}) if told is None else told]
                case _:
                    pass
    return texts
