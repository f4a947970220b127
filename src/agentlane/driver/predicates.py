"""Approval predicates of the current batch: foreign code, asked in tasks of their own; nothing of it is durable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.approval import ApprovalInfo
from agentlane.data.border import clean_text
from agentlane.data.messages import ToolCallPart
from agentlane.driver.effects import EffectMark
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.tool_results import error_text
from agentlane.driver.views import ResolvedCall
from agentlane.ids import call_id
from agentlane.machine.planning import CallView
from agentlane.tool import Tool

PROBLEM_CHARACTERS_MAX = 2_000


class Predicates:
    """Answers of the batch's predicates, and those that are asked now. ``changed`` is called when one has answered."""

    def __init__(
        self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any], changed: Callable[[], None]
    ) -> None:
        self._lane = lane
        self._operation = operation
        self._agent = agent
        self._changed = changed
        self._for: tuple[str | None, object] = (None, None)
        self._answers: dict[int, bool | str] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self.wanted: set[int] = set()
        """Those that the step in the making wants to be asked."""

    def seen(self, answer: str | None, arguments: object, views: Sequence[CallView]) -> list[CallView]:
        """The views with what is known of the predicates; another batch, or other arguments, ask anew."""
        if self._for[0] != answer or self._for[1] is not arguments:
            self.stop()
            self._answers.clear()
            self._for = (answer, arguments)
        return [self._seen(index, view) if view.approval == "open" else view for index, view in enumerate(views)]

    def start(self, calls: Sequence[ToolCallPart], resolved: Sequence[ResolvedCall]) -> None:
        """Ask those that are wanted."""
        wanted, self.wanted = self.wanted, set()
        for index in sorted(wanted - set(self._running)):
            tool = resolved[index].tool
            if tool is not None:
                asking = self._ask(index, str(self._for[0]), tool, calls[index])
                name = f"agentlane approval check {tool.name}"
                self._running[index] = self._lane.runtime.spawn(asking, name, self._ended(index))

    def stop(self) -> None:
        """Cancel what runs; nothing is made of its end. What does not end is named when the session closes."""
        running, self._running = self._running, {}
        self.wanted.clear()
        clean_ups = self._lane.runtime.clean_ups
        for task in running.values():
            clean_ups[task] = task.get_name().removeprefix("agentlane ")
            task.add_done_callback(lambda task: clean_ups.pop(task, None))
            task.cancel()

    def _seen(self, index: int, view: CallView) -> CallView:
        answer = self._answers.get(index)
        if isinstance(answer, str):
            return replace(view, problem=answer)
        if answer is not None:
            return replace(view, approval="yes" if answer else "no")
        return replace(view, approval="asking") if index in self.wanted or index in self._running else view

    async def _ask(self, index: int, answer_id: str, tool: Tool[Any, Any], call: ToolCallPart) -> None:
        mark = EffectMark(self._lane)
        mark.set()
        runtime, name = self._lane.runtime, tool.name
        deps = self._operation.deps_of(self._agent)
        info = ApprovalInfo(
            runtime.session_id, self._lane.name, self._operation.id, call_id(answer_id, index), name, deps
        )
        answer: bool | str
        try:
            predicate = tool.options.approval
            # Checked once more: what a predicate does to its arguments must not reach the call.
            given = predicate if isinstance(predicate, bool) else predicate(tool.named(tool.check_call(call)), info)
            value: object = await given if inspect.isawaitable(given) else given
            answer = f"said {value!r}, not True or False"
            if isinstance(value, bool):
                answer = value
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code may raise anything, and its siblings must not suffer
            if self._running.get(index) is not asyncio.current_task():
                raise  # it was stopped
            answer = f"failed: {error_text(error)}"
        finally:
            mark.ended = True
        if self._running.get(index) is asyncio.current_task():
            if isinstance(answer, str):
                answer = clean_text(f"The approval check of {name!r} {answer}"[:PROBLEM_CHARACTERS_MAX])
            self._answers[index] = answer

    def _ended(self, index: int) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()
            if self._running.get(index) is task:
                del self._running[index]
                self._changed()

        return ended
