"""The model protocol: what a model adapter is asked and what it answers.

``stream`` yields frames (``PartStart``, ``PartDelta``, ``PartEnd``, ``UsageSeen``) and, as its last item, the settled
``AssistantMessage``. The library owns cancellation: it cancels the task that iterates, and the adapter cleans up. An
adapter reports a failure by raising ``ModelError`` or by ending with a message whose stop reason is ``error``. A stream
that ends without its settled message is an error response, and no retry is made inside an adapter: every attempt is an
attempt of the library's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from agentlane.data.entries import StandsFor
from agentlane.data.messages import AssistantMessage, Frame, Message, ModelIdentity
from agentlane.data.usage import Usage
from agentlane.errors import AgentLaneError

StreamItem: TypeAlias = Frame | AssistantMessage
"""What a model's stream yields: frames, and as its last item the settled answer."""


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it: name, description, and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class OutputSchema(Struct, frozen=True, kw_only=True):
    """What the final answer of a run has to be: the JSON Schema, and a name for it."""

    name: str
    schema: dict[str, Any]


class ModelLimits(Struct, frozen=True, kw_only=True):
    """What a model takes; None is not known."""

    context_tokens: int | None = None
    output_tokens: int | None = None


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One request: what the model is to answer, built from committed entries only.

    ``messages`` always pairs every call with one result, directly behind it and in order, with call ids unique in the
    request. They are shared with later requests, so an adapter must not change them; ``settings`` and ``tools`` are the
    request's own. ``session_id`` and ``lane`` serve provider caches. ``operation_id`` and ``attempt`` are for logging.
    """

    instructions: str
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]
    settings: Mapping[str, Any]
    session_id: str
    lane: str
    operation_id: str
    attempt: int
    output: OutputSchema | None = None
    """What the answer that ends the run has to be. An adapter hands it to a provider that takes one; the library checks
    the answer in any case."""
    purpose: Literal["answer", "summary"] = "answer"
    """A summary is asked for with instructions and one message of its own, and without tools."""
    max_output_tokens: int | None = None
    """How long the answer may be, where the library needs a bound; an adapter hands it to its provider, in the place of
    a greater one in ``settings``."""
    stands_for: StandsFor | None = None
    """What the summary in front of the messages stands for, if there is one."""


@runtime_checkable
class Model(Protocol):
    """A source of answers. One object may serve many lanes at once."""

    @property
    def identity(self) -> ModelIdentity:
        """Who answers; stored with each answer."""
        ...

    @property
    def limits(self) -> ModelLimits: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer ``request`` (see the module's text for the order of items)."""
        ...


class ModelError(AgentLaneError):
    """Raised by an adapter when a request failed.

    ``retryable``: trying again may help. ``retry_after_ms``: not sooner than that. ``sent``: whether the request may
    have reached the provider (then the charge is unknown, else it is known to be zero). ``usage``: what is known of it.
    ``kind`` is the stored code: ``context_overflow`` and ``model_error`` are known words.
    """

    code: ClassVar[str] = "model_error"

    # What holds for a subclass whose own __init__ does not call this one.
    retryable: bool = False
    retry_after_ms: int | None = None
    kind: str = "model_error"
    sent: bool = True
    usage: Usage | None = None

    def __init__(
        self,
        message: str = "the model's request failed",
        *,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        kind: str = "model_error",
        sent: bool = True,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, retry_after_ms=retry_after_ms, kind=kind, sent=sent, usage=usage)
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.kind = kind
        self.sent = sent
        self.usage = usage
