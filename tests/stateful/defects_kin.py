"""Defects of agents as tools, put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from agentlane.data.results import OperationResult
from agentlane.driver import aborting, children, launch, steps, verbs
from agentlane.driver.children import ChildEffect, ChildWait
from tests.stateful.defect import Defect, above_stores
from tests.stateful.kin import FROM_NEWEST
from tests.stateful.programs import Abort, Advance, Call, Configure, Drive, Kill, KillAt, Program, Reply, Resume, Run


def _left_by_an_abort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(aborting, "family_of", lambda lane: iter([lane]))


def _counted_twice(patch: pytest.MonkeyPatch) -> None:
    sealed = ChildEffect._sealed

    def counting(self: ChildEffect, result: OperationResult) -> Any:
        operation = self._lane.operation
        if operation is not None:
            rows = operation.usage.rows + result.usage.rows
            operation.usage = replace(operation.usage, rows=rows)
        return sealed(self, result)

    patch.setattr(ChildEffect, "_sealed", counting)


def _shown_nothing(patch: pytest.MonkeyPatch) -> None:
    start = steps.start_child
    patch.setattr(steps, "start_child", lambda *arguments: start(*arguments[:-1], None))


def _failed_is_fine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(children, "seal_error", children.seal_value)


def _overslept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChildWait, "holds", lambda self, now: children.version_of(self.lane) == self.version)


def _looked_at_in_time_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChildWait, "holds", lambda self, now: now < self.waiting.wake_at)


def _driven_by_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "refuse_child", lambda lane: None)


def _another_one_stands_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(launch, "_without_means", lambda agent, name: agent)


def _end_forgotten(patch: pytest.MonkeyPatch) -> None:
    record = ChildEffect._record

    async def forgetting(self: ChildEffect) -> OperationResult:
        return replace(await record(self), status="aborted")

    patch.setattr(ChildEffect, "_record", forgetting)


def _settled_by_its_caller(patch: pytest.MonkeyPatch) -> None:
    """A caller that is aborted does not wait for what it called."""
    planned = steps.planning._plan_cancelled

    def hasty(state: Any, view: Any) -> Any:
        waiting = [i for i, call in enumerate(state.calls) if type(call).__name__ == "WaitingChild"]
        if waiting and not view.live:
            return steps.planning.SettleCalls(tuple((index, "aborted") for index in waiting))
        return planned(state, view)

    patch.setattr(steps.planning, "_plan_cancelled", hasty)


def _configured_by_its_caller(patch: pytest.MonkeyPatch) -> None:
    start = steps.start_child

    def inheriting(lane: Any, operation: Any, tool: Any, prompt: str, id: str, begin: str | None) -> Any:
        inherited = tool.agent.resolve
        try:
            tool.agent.resolve = lambda config: replace(inherited(config), models=operation.config.models, asked=UNSET)
            return start(lane, operation, tool, prompt, id, begin)
        finally:
            del tool.agent.resolve

    patch.setattr(steps, "start_child", inheriting)


def _asks(*more: Reply, tool: Any = "agent") -> tuple[Reply, ...]:
    """A prompt on which the agent of prompt 1 is called."""
    return (Reply("calls", (Call(tool, prompt=1),)), *more)


HANG, LATER = Reply("hang"), Reply("fail", after_ms=37)
FURTHER = (Reply("calls", (Call("agent", prompt=2),)),)
UNTIL_ITS_END = 22
"""Boundaries from the making of a lane with a run on it to the end of the agent that its first answer calls."""

KIN_DEFECTS = above_stores(
    Defect("an abort leaves what was called", _left_by_an_abort, Program((Run(), Abort()), (_asks(), (HANG,)))),
    Defect("what an agent used is counted twice", _counted_twice, Program((Run(),), (_asks(), (Reply(),)))),
    Defect("an agent is not shown what was said", _shown_nothing, Program((Run(),), (_asks(tool="kin"), (Reply(),)))),
    Defect("an agent that failed is not told so", _failed_is_fine, Program((Run(),), (_asks(), (Reply("fail"),)))),
    Defect("an agent that waited is not gone on with", _overslept, Program((Run(), Advance()), (_asks(), (LATER,)))),
    Defect(
        "an agent that waits cannot be aborted",
        _looked_at_in_time_only,
        Program((Run(), Abort(FROM_NEWEST)), (_asks(), (LATER,))),
    ),
    Defect(
        "anybody drives what was called",
        _driven_by_anybody,
        Program((Run(), Kill(), Drive(FROM_NEWEST)), (_asks(), (HANG,))),
    ),
    Defect(
        "another agent stands in for one that is not there",
        _another_one_stands_in,
        Program((Run(), Kill(), Drive(handle=1)), (_asks(), FURTHER, (HANG,))),
    ),
    Defect(
        "the end of an agent is forgotten by a restart",
        _end_forgotten,
        Program((KillAt(UNTIL_ITS_END), Run(), Resume()), (_asks(), (Reply(),))),
    ),
    Defect(
        "an aborted caller does not wait for what it called",
        _settled_by_its_caller,
        Program((Run(), Kill(), Abort(), Resume()), (_asks(), (HANG,))),
    ),
    Defect(
        "an agent is configured as its caller",
        _configured_by_its_caller,
        Program((Configure(model=1), Run()), (_asks(), (Reply(),))),
    ),
)
