"""The hooks of a program as the library asks them: they do what the program says, and keep what they were told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from agentlane import Block, Decline, SummaryText, TextPart, ToolResult, UserMessage, hook
from tests.stateful.hooks import Hook, Hooks
from tests.stateful.shapes import Names, message_shape, model_number
from tests.stateful.summing import UNIT

MARK = "mark"
"""The argument that hooks of calls give them."""


class Hooked:
    """What hooks of one world were told. No death forgets it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._asked: Counter[int] = Counter()
        self._heard: list[tuple[Any, ...]] = []
        self._hanging: dict[str, list[asyncio.Task[Any]]] = {}
        """The tasks in which hooks of an operation hang, or hung."""

    async def gone(self, op: str) -> None:
        """Return once no hook of the operation hangs: it was told to end, for a request of it is under way."""
        hanging = [task for task in self._hanging.pop(op, ()) if not task.done()]
        if hanging:
            await asyncio.wait(hanging)

    def of(self, handle: int) -> list[Any]:
        """The hooks of a handle's agent: those of the second are in the other order."""
        numbered = list(enumerate(self._hooks))
        made = [self._made(number, each) for number, each in (reversed(numbered) if handle else numbered)]
        return made

    def heard(self, names: Names) -> list[tuple[Any, ...]]:
        """What they were told, in the plain model's words."""
        return [_in_words(names, told) for told in self._heard]

    def _made(self, number: int, spec: Hook) -> Any:
        def hear(info: Any) -> None:
            self._asked[number] += 1
            self._heard.append((number, spec.point, *_told(spec.point, info)))

        def at_once(info: Any) -> Any:
            hear(info)
            return _answer(number, spec, info)

        async def later(info: Any) -> Any:
            hear(info)
            if self._asked[number] <= spec.hangs:
                task = asyncio.current_task()
                if task is not None and spec.point in ("before_tool", "before_finish"):  # those that can be overtaken
                    self._hanging.setdefault(info.operation_id, []).append(task)
                await asyncio.get_running_loop().create_future()
            return _answer(number, spec, info)

        function: Callable[[Any], Any] = at_once if spec.plain else later
        return hook(spec.point, function, on_error=spec.on_error)  # type: ignore[call-overload]


def _answer(number: int, spec: Hook, info: Any) -> Any:
    if spec.says == "raise":
        raise ValueError("on purpose")
    if spec.says == "block":
        why = f"blocked h{number}"
        return Decline(why) if spec.point == "before_compaction" else Block(why)
    if spec.says != "change":
        return 42 if spec.says == "wrong" else None
    match spec.point:
        case "before_request":
            return {**info.settings, "hook": number}
        case "transform_context":
            return [*info.messages, UserMessage(content=(TextPart(text=f"shown by h{number}"),))]
        case "after_response":
            text = TextPart(text=f"{info.message.text} h{number}")
            return replace(info.message, content=(text, *info.message.calls))
        case "before_tool":
            return {**info.arguments, MARK: info.arguments.get(MARK, "") + f" h{number}"}
        case "after_tool":
            text = f"{info.result.text} h{number}"
            return ToolResult(content=text, is_error=info.result.is_error, terminate=info.terminate)
        case "before_compaction":
            return SummaryText(f"summary of h{number}")
        case "before_finish":
            return f"more h{number}"
        case _:
            return 42


def _told(point: str, info: Any) -> tuple[Any, ...]:
    if point == "before_navigation":
        messages = tuple(message_shape(each)[1] for each in info.messages)
        return (info.lane, info.from_tip, info.to, info.label, messages)
    return (info.lane, info.operation_id, info.turn, info.recovered, *_details(point, info))


def _details(point: str, info: Any) -> tuple[Any, ...]:
    match point:
        case "before_run":
            return (tuple(message_shape(each)[1] for each in info.inputs),)
        case "before_request":
            return (info.attempt, model_number(info.model), dict(info.settings))
        case "transform_context":
            return (info.attempt, model_number(info.model), [message_shape(each) for each in info.messages])
        case "after_response":
            return (info.attempt, message_shape(info.message))
        case "before_tool":
            return (info.name, info.arguments["index"], info.arguments.get(MARK, ""))
        case "after_tool":
            mark = info.arguments.get(MARK, "")
            return (message_shape(info.result)[1:], info.terminate, mark)
        case "before_compaction":
            shown = [message_shape(each) for each in info.messages]
            return (info.reason, shown, info.earlier, info.tokens_before // UNIT)
        case _:
            return (info.text, info.follow_ups)


def _in_words(names: Names, told: tuple[Any, ...]) -> tuple[Any, ...]:
    number, point, lane, *rest = told
    if point == "before_navigation":
        from_tip, to, *others = rest
        return (number, point, lane, names.number(from_tip), names.number(to), *others)
    op, *others = rest
    return (number, point, lane, names.label(op), *others)
