"""The tools of a playback: they return what was recorded, found by the call's place, and end in a permuted order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentlane import AgentLane, SessionFaulted, Tool, ToolContext, ToolResult
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import ReplayPolicy
from agentlane.ids import call_index
from tests.recorded.plan import CallPlace, Plan
from tests.recorded.witness import Witness, turn_of

SAFE: Mapping[str, ReplayPolicy] = {"read": "safe", "bash": "safe", "edit": "safe", "write": "safe"}
HONEST: Mapping[str, ReplayPolicy] = {"read": "safe", "bash": "never", "edit": "never", "write": "never"}
PAGE = 8


class _Call(NamedTuple):
    number: int
    rank: int
    future: asyncio.Future[None]


class Desk:
    """The tools of one process. Calls of a batch that run together wait here until it is their turn to end.

    When all that are under way have come, they are let go in an order drawn from the batch's place: all in one go, or
    each when the outcome of the one before is committed, which is drawn too. A repeated call runs alone.
    """

    def __init__(self, plan: Plan, witness: Witness, policies: Mapping[str, ReplayPolicy], *, seed: int) -> None:
        self._plan = plan
        self._witness = witness
        self._policies = policies
        self._seed = seed
        self._lane: AgentLane[Any, Any] | None = None
        self._batch: tuple[str, int] = ("", 0)
        self._order: list[int] = []
        self._waiting: list[_Call] = []
        self._let_go: set[int] = set()
        self._together = False

    def serve(self, lane: AgentLane[Any, Any]) -> None:
        """The lane whose calls come here."""
        self._lane = lane

    def tools(self) -> list[Tool[Any, Any]]:
        return [self._tool(name, policy) for name, policy in self._policies.items()]

    def committed(self) -> None:
        """A commit was made: whoever waits for it may be let go."""
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._look)

    def _tool(self, name: str, policy: ReplayPolicy) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> ToolResult:
            place = await self._place(ctx)
            self._witness.starts[place] += 1
            if not ctx.recovered:
                await self._turn_to_end(ctx, place)
            return self._recorded(name, arguments, place)

        return Tool(name, run, replay=policy)

    async def _place(self, ctx: ToolContext[Any]) -> CallPlace:
        """Where the call stands in the conversation: told from the ids of the operation, the answer and the call."""
        index = call_index(ctx.turn_id, ctx.call_id)
        assert self._lane is not None and index is not None
        if self._batch[0] != ctx.turn_id:
            answer = await self._kept_answers(self._lane) - 1
            if self._batch[0] != ctx.turn_id:  # a call of the same batch may have been faster
                self._begin(ctx.turn_id, answer)
        return CallPlace(turn_of(ctx.operation_id), self._batch[1], index)

    async def _kept_answers(self, lane: AgentLane[Any, Any]) -> int:
        """The number of answers since the last prompt; those that went wrong do not count."""
        count, after = 0, None
        while True:
            page = await lane.entries(types=("user", "assistant"), limit=PAGE, after=after)
            for entry in page:
                if not isinstance(entry.body, AssistantMessage):
                    return count
                count += entry.body.stop_reason not in ("error", "aborted")
            after = page[-1].id

    def _begin(self, turn_id: str, answer: int) -> None:
        self._batch = (turn_id, answer)
        self._waiting, self._let_go = [], set()

    async def _turn_to_end(self, ctx: ToolContext[Any], place: CallPlace) -> None:
        order = random.Random(f"{self._seed}/{place.turn}/{place.answer}")
        self._together = order.random() < 0.5
        ranks = list(range(100))
        order.shuffle(ranks)
        self._order = self._witness.ends[place.turn, place.answer]
        call = _Call(place.call, ranks[place.call], asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._look()
        await call.future

    def _look(self) -> None:
        """Let go whoever may end next, once all calls that are under way have come."""
        assert self._lane is not None
        try:
            operation = self._lane.inspect().operation
        except SessionFaulted:
            return  # the process died at the commit that was to be looked at
        if operation is None or not self._waiting:
            return
        under_way = {index for index, call in enumerate(operation.calls) if call.status == "effect_pending"}
        if under_way - self._let_go != {call.number for call in self._waiting}:
            return  # somebody has yet to come
        if not self._together and under_way & self._let_go:
            return  # somebody was let go whose outcome is not committed
        self._waiting.sort(key=lambda call: call.rank)
        going = self._waiting if self._together else self._waiting[:1]
        self._waiting = self._waiting[len(going) :]
        for call in going:
            self._let_go.add(call.number)
            self._order.append(call.number)
            if not call.future.done():
                call.future.set_result(None)

    def _recorded(self, name: str, arguments: dict[str, Any], place: CallPlace) -> ToolResult:
        result = self._plan.results[place]
        asked = self._plan.calls[place]
        if (asked.name, asked.arguments) != (name, arguments):
            self._witness.problems.append(f"{place}: {name} was called with {arguments}, recorded is {asked}")
        return ToolResult(
            content=result.content,
            details=result.details,
            is_error=result.is_error,
            terminate=place in self._plan.terminating,
        )
