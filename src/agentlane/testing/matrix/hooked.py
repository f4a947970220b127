"""What hooks were asked and what they said, seen from outside; and whether results and starts agree with it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data.messages import AssistantMessage, Message, ToolCallPart, ToolResultMessage
from agentlane.driver.tool_results import seal_value
from agentlane.hooks import Block, Hook, HookPoint
from agentlane.tool import ToolResult


@dataclass
class Hooked:
    """One hook that was asked: in which process, with what, and what it said if it came to an end."""

    life: int
    point: HookPoint
    name: str
    info: Any
    ended: bool = False
    value: Any = None
    error: BaseException | None = None

    @property
    def call_id(self) -> str:
        """The call that it was asked about; empty where it was about none."""
        return str(getattr(self.info, "call_id", ""))


def watched(hooks: Sequence[Hook], seen: list[Hooked], life: int, alive: Callable[[int], bool]) -> tuple[Hook, ...]:
    """The hooks, each with a record of what it is asked and says."""
    return tuple(replace(hook, function=_watch(hook, seen, life, alive)) for hook in hooks)


def _watch(hook: Hook, seen: list[Hooked], life: int, alive: Callable[[int], bool]) -> Callable[[Any], Any]:
    function = hook.function

    @functools.wraps(function)
    def ask(info: Any) -> Any:
        record = Hooked(life, hook.point, hook.name, info)
        seen.append(record)
        try:
            value = function(info)
        except BaseException as error:
            record.error, record.ended = error, True
            raise
        if inspect.isawaitable(value):
            return wait(value, record)
        record.value, record.ended = value, True
        return value

    async def wait(value: Any, record: Hooked) -> Any:
        try:
            got = await value
        except BaseException as error:
            record.error, record.ended = error, alive(life)
            raise
        record.value, record.ended = got, True
        return got

    return ask


def untouched_by(seen: Sequence[Hooked], life: int, operation_id: str, sent: Sequence[Message]) -> Sequence[Message]:
    """What the hooks of the request that is sent now were given, before the first of them changed it."""
    here = [each for each in seen if each.life == life and each.point == "transform_context"]
    mine = [each for each in here if each.info.operation_id == operation_id]
    if not mine:
        return sent
    last = mine[-1].info
    return next(each.info.messages for each in mine if (each.info.turn, each.info.attempt) == (last.turn, last.attempt))


def check_sent(
    seen: Sequence[Hooked], life: int, operation_id: str, attempt: int, sent: Sequence[Message]
) -> list[str]:
    """A request is sent with what its hooks made of the context."""
    mine = [each for each in seen if each.life == life and each.point == "transform_context" and each.ended]
    said = [each.value for each in mine if each.info.operation_id == operation_id and each.info.attempt == attempt]
    if any(value is None or list(value) == list(sent) for value in said) or not said:
        return []
    return [f"attempt {attempt} of {operation_id} was shown {list(sent)!r}, and hooks said {said!r}"]


def said_last(seen: Sequence[Hooked], point: HookPoint, call_id: str) -> list[Hooked]:
    """What the hooks of a point said of a call in the last process that asked them about it."""
    about = [each for each in seen if each.point == point and each.call_id == call_id]
    return [each for each in about if each.life == about[-1].life and each.ended]


def replaced_result(
    seen: Sequence[Hooked], call: ToolCallPart, call_id: str, limit_bytes: int
) -> ToolResultMessage | None:
    """The result that ``after_tool`` hooks put in the place of a call's own; None if they left it."""
    for each in reversed(said_last(seen, "after_tool", call_id)):
        if isinstance(each.value, ToolResult):
            return seal_value(call, each.value, limit_bytes).message
    return None


def replaced_answers(seen: Sequence[Hooked]) -> list[AssistantMessage]:
    """Answers that hooks put in the place of the model's."""
    return [each.value for each in seen if isinstance(each.value, AssistantMessage)]


def is_blocked(seen: Sequence[Hooked], call_id: str, body: ToolResultMessage) -> bool:
    """Whether a ``before_tool`` hook kept the call from starting, and the result says why."""
    for each in said_last(seen, "before_tool", call_id):
        if isinstance(each.value, Block):
            return body.is_error and body.text == each.value.reason
        if each.error is not None and "at before_tool failed" in body.text:
            return body.is_error
    return False


def check_begun(
    seen: Sequence[Hooked], agent: Agent[Any, Any], call: ToolCallPart, starts: Sequence[Any]
) -> Iterator[str]:
    """A call that starts was asked about, not refused, and has the arguments that the hooks left it."""
    if not any(hook.point == "before_tool" for hook in agent.hooks) or not starts:
        return
    said = said_last(seen, "before_tool", starts[0].call_id)
    what = f"call {starts[0].call_id} of {call.name!r}"
    if not said:
        yield f"{what} was started, and no hook was asked before"
    arguments: Any = call.arguments
    for each in said:
        if isinstance(each.value, Block):
            yield f"{what} was started, and hook {each.name!r} had blocked it"
        elif each.error is None and each.value is not None:
            arguments = each.value
    if agent.tools[call.name].options.approval is not False:
        return  # a person may have given others
    for start in starts:
        if isinstance(start.arguments, dict) and start.arguments != arguments:
            yield f"{what} was started with {start.arguments!r}, and the hooks left {arguments!r}"


def check_shown(seen: Sequence[Hooked], agent: Agent[Any, Any], call_id: str) -> Iterator[str]:
    """A result that is placed in a run that is not aborted has been shown to the hooks."""
    if any(hook.point == "after_tool" for hook in agent.hooks) and not said_last(seen, "after_tool", call_id):
        yield f"the result of call {call_id} was placed, and no hook was asked before"
