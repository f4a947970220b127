"""Hooks: functions of the application that a run asks at fixed points. Declared here, run by the driver."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, get_args, overload

from msgspec import Struct
from typing_extensions import TypeVar

from agentlane.data.messages import AssistantMessage, Message, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.data.operations import SummaryReason
from agentlane.errors import InvalidDefinition
from agentlane.tool import ToolResult

Deps = TypeVar("Deps", default=Any)
T = TypeVar("T")

HookPoint: TypeAlias = Literal[
    "before_run",
    "before_request",
    "transform_context",
    "after_response",
    "before_tool",
    "after_tool",
    "before_finish",
    "before_navigation",
    "before_compaction",
]
"""Where a hook is asked."""

OnError: TypeAlias = Literal["block", "continue"]
"""What a hook's failure does: ``block`` stands in the way of what was asked about, ``continue`` passes it over."""

DEFAULT_ON_ERROR: dict[HookPoint, OnError] = {
    "before_run": "block",
    "before_request": "block",
    "transform_context": "continue",
    "after_response": "continue",
    "before_tool": "block",
    "after_tool": "continue",
    "before_finish": "continue",
    "before_navigation": "block",
    "before_compaction": "continue",
}


class HookInfo(Struct, Generic[Deps], frozen=True, kw_only=True):
    """What every hook is told.

    ``turn`` counts the model's answers of the operation from 1, the one that is asked for included. ``recovered`` says
    that an earlier pass drove the operation, or may have: then this hook may have been asked the same before.
    """

    session_id: str
    lane: str
    operation_id: str
    turn: int
    recovered: bool
    deps: Deps


class BeforeRun(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """An operation that is about to ask its model for the first time; ``inputs`` are its prompt."""

    inputs: tuple[UserMessage, ...]


class BeforeRequest(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A request that is about to be intended: its attempt within the turn, its model, and the model's settings."""

    attempt: int
    model: ModelIdentity
    settings: dict[str, Any]


class TransformContext(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """The messages of a request that is about to be sent. They are shared with later requests: do not change them."""

    attempt: int
    model: ModelIdentity
    messages: tuple[Message, ...]


class AfterResponse(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A whole answer that is not settled yet; answers that failed or were cut off are not shown."""

    attempt: int
    message: AssistantMessage


class BeforeFinish(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A run that is about to complete: the text of its last answer, and how many follow-ups hooks have given it."""

    text: str
    follow_ups: int


class BeforeTool(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A call that is about to start: its id, its tool, and its arguments as hooks before this one left them."""

    call_id: str
    name: str
    arguments: dict[str, Any]


class AfterTool(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A call that has its result, before it is placed; the result of a call that did not run is the library's.

    ``arguments`` are those it had, None where the model sent no object; ``terminate`` is its wish to end the run.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    result: ToolResultMessage
    terminate: bool


class BeforeNavigation(Struct, Generic[Deps], frozen=True, kw_only=True):
    """A lane that is about to move from ``from_tip`` to ``to``; None is before the first entry.

    ``messages`` are those of the user that a rewind gives back; a navigation has none.
    """

    session_id: str
    lane: str
    deps: Deps
    from_tip: str | None
    to: str | None
    label: str | None
    messages: tuple[UserMessage, ...]


class BeforeCompaction(HookInfo[Deps], Generic[Deps], frozen=True, kw_only=True):
    """A part of what the model is shown that is about to be summarized.

    ``reason``: somebody asked (``manual``), the next request would be too long (``threshold``), one was too long
    (``overflow``), or the lane leaves its path (``navigation``). ``messages`` are that part, before any
    ``transform_context``, and ``earlier`` the summary in front of it, which the new one carries on. ``tokens_before``
    counts all that is shown. ``instructions`` are those of the policy and of the request.
    """

    reason: SummaryReason
    messages: tuple[Message, ...]
    earlier: str | None
    tokens_before: int
    instructions: tuple[str, ...]


class Decline(Struct, frozen=True):
    """Returned by a ``before_compaction`` hook: nothing is summarized now, for this reason."""

    reason: str = ""


class SummaryText(Struct, frozen=True):
    """Returned by a ``before_compaction`` hook: the summary, which no model is asked for then."""

    text: str


class Block(Struct, frozen=True):
    """Returned by a ``before_tool`` hook: the call does not start, and ``reason`` is its error result.

    By a ``before_navigation`` hook: the lane does not move, and ``InvalidNavigation`` says the reason.
    """

    reason: str


FollowUp: TypeAlias = str | UserMessage
"""What a ``before_finish`` hook may say to the model: a text, or a message."""

Returned: TypeAlias = T | Awaitable[T | None] | None
BeforeRunFunction: TypeAlias = Callable[[BeforeRun[Any]], Awaitable[None] | None]
BeforeRequestFunction: TypeAlias = Callable[[BeforeRequest[Any]], Returned[Mapping[str, Any]]]
TransformContextFunction: TypeAlias = Callable[[TransformContext[Any]], Returned[Sequence[Message]]]
AfterResponseFunction: TypeAlias = Callable[[AfterResponse[Any]], Returned[AssistantMessage]]
BeforeFinishFunction: TypeAlias = Callable[[BeforeFinish[Any]], Returned[FollowUp | Sequence[FollowUp]]]
BeforeToolFunction: TypeAlias = Callable[[BeforeTool[Any]], Returned[Mapping[str, Any] | Block]]
BeforeNavigationFunction: TypeAlias = Callable[[BeforeNavigation[Any]], Returned[Block]]
BeforeCompactionFunction: TypeAlias = Callable[[BeforeCompaction[Any]], Returned[Decline | SummaryText]]
AfterToolFunction: TypeAlias = Callable[[AfterTool[Any]], Returned[ToolResult]]


class Hook(Struct, frozen=True, kw_only=True):
    """One function at one point. Made by ``hook``."""

    point: HookPoint
    function: Callable[[Any], Any]
    on_error: OnError

    @property
    def name(self) -> str:
        """What errors and findings call it."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return str(getattr(function, "__qualname__", type(function).__name__))


@overload
def hook(point: Literal["before_run"], function: BeforeRunFunction, *, on_error: OnError | None = None) -> Hook: ...
@overload
def hook(
    point: Literal["before_request"], function: BeforeRequestFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(
    point: Literal["transform_context"], function: TransformContextFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(
    point: Literal["after_response"], function: AfterResponseFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(
    point: Literal["before_finish"], function: BeforeFinishFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(point: Literal["before_tool"], function: BeforeToolFunction, *, on_error: OnError | None = None) -> Hook: ...
@overload
def hook(
    point: Literal["before_navigation"], function: BeforeNavigationFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(
    point: Literal["before_compaction"], function: BeforeCompactionFunction, *, on_error: OnError | None = None
) -> Hook: ...
@overload
def hook(point: Literal["after_tool"], function: AfterToolFunction, *, on_error: OnError | None = None) -> Hook: ...
def hook(point: HookPoint, function: Callable[[Any], Any], *, on_error: OnError | None = None) -> Hook:
    """A hook for ``Agent(hooks=[...])``: ``function``, plain or async, is asked at ``point``.

    It gets the point's record and returns what that point takes, or None:

    - ``before_run`` (``BeforeRun``), before the first request of an operation: nothing.
    - ``before_request`` (``BeforeRequest``), before each request, repeated ones too: settings for this request.
    - ``transform_context`` (``TransformContext``), before a request is sent: other messages for this request.
    - ``after_response`` (``AfterResponse``), once an answer is whole, before it is settled: another answer.
    - ``before_tool`` (``BeforeTool``), before a call starts: other arguments, or ``Block(reason)``.
    - ``after_tool`` (``AfterTool``), once the call's result is durable, before it is placed: another ``ToolResult``.
    - ``before_finish`` (``BeforeFinish``), before a run completes: one message or several, and the run goes on.

    - ``before_navigation`` (``BeforeNavigation``), before a lane moves: ``Block(reason)``. It is asked in the task that
      calls ``navigate`` or ``rewind``, which ends with ``InvalidNavigation`` if it says so, or fails; of a navigation
      that is an operation when that is driven, which fails with the code ``navigation_refused`` then.
    - ``before_compaction`` (``BeforeCompaction``), before something is summarized: ``SummaryText(text)``, which is the
      summary then, or ``Decline(reason)``. Where a request was too long the run fails then, and a compaction or
      navigation that somebody asked for fails; before a request that would be too long the run goes on as it is.
      The first of several hooks that returns something decides.

    Several hooks of a point are asked in their order, each told what those before it made. A plain function runs on the
    event loop, so it must not block. Whatever a hook raises, or returns against its type, is a failure: of
    ``before_run`` and ``before_request`` it fails the run with the code ``hook_failed``, of ``before_tool`` it is the
    call's error result, of the others it is reported in ``session.findings`` and passed over. ``on_error`` says it
    otherwise: ``"continue"`` always passes over, ``"block"`` at a point that passes over makes the run fail.

    A hook's result is durable with the commit that uses it. A hook may be asked again after a crash or a close before
    that commit. Abort and close cancel it as they cancel a tool. Raises ``InvalidDefinition``.
    """
    if point not in get_args(HookPoint):
        raise InvalidDefinition(f"hook: {point!r} is not one of {', '.join(get_args(HookPoint))}")
    if not callable(function):
        raise InvalidDefinition(f"hook at {point}: {function!r} must be a function")
    if on_error is not None and on_error not in get_args(OnError):
        raise InvalidDefinition(f"hook at {point}: on_error={on_error!r} must be 'block', 'continue' or None")
    return Hook(point=point, function=function, on_error=on_error or DEFAULT_ON_ERROR[point])
