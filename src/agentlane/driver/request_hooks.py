"""Hooks around one model request: asked inside of its effect, for they change what is sent and what was answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.messages import AssistantMessage, Message, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.driver.hook_calls import HookCaller, wrong_type
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidMessage
from agentlane.hooks import AfterResponse, Hook, TransformContext
from agentlane.machine.pairing import pairing_problem


class RequestHooks:
    """The ``transform_context`` and ``after_response`` hooks of one request; ``info`` is what every hook is told."""

    def __init__(
        self, runtime: Runtime, agent: Agent[Any, Any], info: dict[str, Any], *, attempt: int, model: ModelIdentity
    ) -> None:
        self._runtime = runtime
        self._info = info
        self._attempt = attempt
        self._model = model
        self._transform: tuple[Hook, ...] = tuple(hook for hook in agent.hooks if hook.point == "transform_context")
        self._caller: HookCaller | None = None
        self._after: tuple[Hook, ...] = tuple(hook for hook in agent.hooks if hook.point == "after_response")

    def caller(self, stopped: Callable[[], bool]) -> HookCaller:
        """Asks hooks within the request's effect."""
        self._caller = HookCaller(self._runtime, f"operation {self._info['operation_id']}", stopped)
        return self._caller

    @property
    def asking(self) -> Hook | None:
        """The hook that is being asked now."""
        return None if self._caller is None else self._caller.asking

    @property
    def wants_answers(self) -> bool:
        """Whether answers are shown to hooks."""
        return bool(self._after)

    async def transform(self, caller: HookCaller, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages that are sent; ``HookFailed`` where a hook stands in their way."""
        if not self._transform:
            return messages
        self._runtime.reached("effect.hook.start")
        for hook in self._transform:
            given = tuple(messages)
            info = TransformContext(**self._info, attempt=self._attempt, model=self._model, messages=given)
            said = await caller.ask(hook, info, partial(_messages, given))
            messages = messages if said is None else said
        self._runtime.reached("effect.hook.end")
        return messages

    async def respond(
        self, caller: HookCaller, message: AssistantMessage, clean: Callable[[AssistantMessage], AssistantMessage]
    ) -> AssistantMessage:
        """The answer that is settled; ``clean`` checks one as if the model had given it. ``HookFailed`` likewise."""
        self._runtime.reached("effect.hook.start")
        for hook in self._after:
            info = AfterResponse(**self._info, attempt=self._attempt, message=message)
            said = await caller.ask(hook, info, lambda value: _answer(value, clean))
            message = message if said is None else said
        self._runtime.reached("effect.hook.end")
        return message


def _answer(value: Any, clean: Callable[[AssistantMessage], AssistantMessage]) -> AssistantMessage:
    if not isinstance(value, AssistantMessage):
        raise wrong_type("an AssistantMessage", value)
    if value.stop_reason == "aborted":
        raise InvalidMessage("answer.stop_reason: only an abort makes an answer aborted")
    return clean(value)


def _messages(given: Sequence[Message], value: Any) -> tuple[Message, ...]:
    """Messages that can be sent. Those that were given are taken as they are."""
    if not isinstance(value, list | tuple):
        raise wrong_type("a list of messages", value)
    known = {id(message) for message in given}
    messages: list[Message] = []
    for index, message in enumerate(value):
        if id(message) in known:
            messages.append(message)
            continue
        if not isinstance(message, UserMessage | AssistantMessage | ToolResultMessage):
            raise InvalidMessage(f"messages[{index}]: a message is needed here, not {type(message).__name__}")
        _, copy = codec.BODY.seal(message, f"messages[{index}]")
        if isinstance(copy, UserMessage | AssistantMessage | ToolResultMessage):
            messages.append(copy)
    if (problem := pairing_problem(messages)) is not None:
        raise InvalidMessage(problem)
    return tuple(messages)
