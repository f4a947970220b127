"""The words a test author writes a script with: parts of an answer, whole answers, and answers that go wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from agentlane.data.border import clean_json
from agentlane.data.messages import (
    AssistantPart,
    ErrorInfo,
    ModelIdentity,
    ProviderPart,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from agentlane.data.usage import Usage
from agentlane.errors import InvalidDefinition, InvalidMessage
from agentlane.model import ModelError

SCRIPTED_USAGE = Usage(
    input_tokens=100,
    output_tokens=10,
    cache_read_tokens=0,
    cache_write_tokens=0,
    reasoning_tokens=0,
    cost_nanos=1_000,
)
"""Usage of a scripted answer that names none."""


class ScriptedCall(Struct, frozen=True, kw_only=True):
    """A call whose id the model gives: unique in its script, and the same each time the answer is given."""

    name: str
    arguments: dict[str, Any] | None
    text: str


class Half(Struct, frozen=True, kw_only=True):
    """A part that was still arriving when its answer went wrong: its start and its deltas are shown, never its end."""

    part: TextPart | ThinkingPart | ToolCallPart | ScriptedCall


ScriptPart: TypeAlias = AssistantPart | ScriptedCall | Half
"""A part of a scripted answer. The library's own parts are taken as they are, a call with its own id among them."""


class Settles(Struct, frozen=True, kw_only=True):
    """The answer ends with its settled message; without a stop reason it is told from the calls."""

    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None


class Raises(Struct, frozen=True, kw_only=True):
    """The stream raises."""

    error: Exception


class Cuts(Struct, frozen=True):
    """The stream ends without its settled message."""


class Hangs(Struct, frozen=True):
    """The stream waits until it is cancelled."""


Ending: TypeAlias = Settles | Raises | Cuts | Hangs


class Answer(Struct, frozen=True, kw_only=True):
    """One whole answer of a script. Made by ``answer``, ``fail``, ``raises``, ``cut``, ``hang`` and ``hold``."""

    parts: tuple[ScriptPart, ...]
    ending: Ending
    usage: Usage | None = None
    held: bool = False
    model: ModelIdentity | None = None

    def __post_init__(self) -> None:
        if any(type(part) is Half for part in self.parts) and self.kept:
            raise InvalidDefinition("a half part is for answers that go wrong: fail, raises, cut or hang")

    @property
    def kept(self) -> bool:
        """Whether later requests show this answer: it settled well and is not empty."""
        return (
            type(self.ending) is Settles
            and self.ending.stop_reason not in ("error", "aborted")
            and any(map(_has_content, self.parts))
        )

    @property
    def asked_again(self) -> bool:
        """Whether the library by itself asks again after this answer, as long as attempts are left."""
        match self.ending:
            case Settles(stop_reason=stop_reason, error=error):
                return stop_reason == "aborted" or (error is not None and error.retryable)
            case Raises(error=raised):
                return raised.retryable if isinstance(raised, ModelError) else isinstance(raised, OSError)
            case Cuts():
                return True
            case Hangs():
                return False


ScriptAnswer: TypeAlias = str | Sequence[ScriptPart] | Answer
"""What a script is made of: a text, a list of parts, or a whole answer."""


def say(text: str, *, signature: str | None = None) -> TextPart:
    """A part of plain text."""
    return TextPart(text=text, signature=signature)


def think(text: str, *, signature: str | None = None, redacted: bool = False) -> ThinkingPart:
    """A part of reasoning, with the provider's opaque ``signature``."""
    return ThinkingPart(text=text, signature=signature, redacted=redacted)


def call(name: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> ScriptedCall:
    """A call of the tool ``name``. Arguments are given by keyword, as one object, or both.

    They are copied and otherwise taken as they are, so that a test can hand over what breaks the border rule. A call
    with a certain provider id is a ``ToolCallPart``; one whose arguments do not parse is made by ``raw_call``.
    """
    whole = copy.deepcopy({**(arguments or {}), **more})
    return ScriptedCall(name=name, arguments=whole, text=arguments_text(whole))


def raw_call(name: str, text: str) -> ScriptedCall:
    """A call whose arguments come as ``text``; unless that is an object within the border rule, the call has none."""
    return ScriptedCall(name=name, arguments=_parse(text), text=text)


def half(part: TextPart | ThinkingPart | ToolCallPart | ScriptedCall) -> Half:
    """``part`` as far as it had come when its answer went wrong; of a call, its argument text is what had come."""
    return Half(part=part)


def answer(
    parts: str | Iterable[ScriptPart],
    *,
    stop_reason: StopReason | None = None,
    error: ErrorInfo | None = None,
    usage: Usage | None = SCRIPTED_USAGE,
) -> Answer:
    """An answer that settles: with a stop reason of its own (``length``, say), its own usage, or an unknown one.

    With ``stop_reason="error"`` the model reports a failure by its settled message; ``fail`` does it by raising.
    """
    if (stop_reason == "error") != (error is not None):
        raise InvalidDefinition("stop_reason='error' and error= belong together")
    return Answer(parts=_parts(parts), ending=Settles(stop_reason=stop_reason, error=error), usage=usage)


def fail(
    code: str,
    message: str | None = None,
    *,
    retryable: bool = False,
    retry_after_ms: int | None = None,
    parts: str | Iterable[ScriptPart] = (),
    usage: Usage | None = None,
    sent: bool = True,
) -> Answer:
    """An answer that shows ``parts`` and then fails with a ``ModelError`` of kind ``code``."""
    error = ModelError(
        message or f"scripted failure: {code}",
        retryable=retryable,
        retry_after_ms=retry_after_ms,
        kind=code,
        sent=sent,
        usage=usage,
    )
    return Answer(parts=_parts(parts), ending=Raises(error=error))


def raises(error: Exception, *, parts: str | Iterable[ScriptPart] = ()) -> Answer:
    """An answer that shows ``parts`` and then raises a copy of ``error``, as an adapter with a fault in it would."""
    return Answer(parts=_parts(parts), ending=Raises(error=error))


def cut(parts: str | Iterable[ScriptPart] = (), *, usage: Usage | None = None) -> Answer:
    """An answer whose stream just ends after ``parts``, without its settled message; ``usage`` is shown before."""
    return Answer(parts=_parts(parts), ending=Cuts(), usage=usage)


def hang(parts: str | Iterable[ScriptPart] = (), *, usage: Usage | None = None) -> Answer:
    """An answer that shows ``usage`` and ``parts`` and then waits until it is cancelled; see ``model.hanging()``."""
    return Answer(parts=_parts(parts), ending=Hangs(), usage=usage)


def hold(held: ScriptAnswer) -> Answer:
    """An answer that shows all its parts and waits for ``model.release()`` before it ends as it would have."""
    whole = as_answer(held)
    if type(whole.ending) is Hangs:
        raise InvalidDefinition("hang() never ends, so there is nothing to hold back")
    return msgspec.structs.replace(whole, held=True)


def as_answer(given: ScriptAnswer) -> Answer:
    """The whole answer that a text, a list of parts or an answer stands for."""
    return given if isinstance(given, Answer) else answer(given)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Arguments as a provider would stream them."""
    return json.dumps(arguments, ensure_ascii=False, default=repr)


def _parts(parts: str | Iterable[ScriptPart]) -> tuple[ScriptPart, ...]:
    if isinstance(parts, str):
        return (TextPart(text=parts),) if parts else ()
    whole = tuple(parts)
    for index, part in enumerate(whole):
        if not isinstance(part, TextPart | ThinkingPart | ToolCallPart | ProviderPart | ScriptedCall | Half):
            raise InvalidDefinition(
                f"part {index} of a scripted answer is a {type(part).__name__}; use say, think, call or another part"
            )
    return whole


def _has_content(part: ScriptPart) -> bool:
    return not isinstance(part, TextPart) or bool(part.text)


def _parse(text: str) -> dict[str, Any] | None:
    try:
        value = clean_json(json.loads(text))
    except (ValueError, RecursionError, InvalidMessage):
        return None
    return value if isinstance(value, dict) else None
