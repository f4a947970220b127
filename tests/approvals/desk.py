"""Agents whose tools people are asked about, and what their tools did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlane import Agent, AgentLane, Approval, Prompt, Session, Tool, ToolContext, Waiting
from agentlane.testing.models import ScriptedModel
from tests.session.places import Place


class Desk:
    """One lane ``main`` on a place, opened as often as a test likes; ``runs`` are what its tools did, in order."""

    def __init__(self, place: Place, script: Sequence[Any], **options: Any) -> None:
        self.place = place
        self.script = script
        self.options = options
        self.runs: list[str] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.session: Session
        self.lane: AgentLane[Any, Any]

    def tool(self, name: str, **options: Any) -> Desk:
        """One more tool; it says what it was called with."""
        self.tools[name] = options
        return self

    def agent(self, **options: Any) -> Agent[Any, Any]:
        """An agent as one process has it."""
        built = [self._tool(name, **given) for name, given in self.tools.items()]
        return Agent(model=ScriptedModel(list(self.script)), tools=built, **{**self.options, **options})

    async def open(self, **options: Any) -> Desk:
        """Open the session, and the lane."""
        self.session = await self.place.open()
        self.lane = await self.session.lane("main", self.agent(**options))
        return self

    async def begin(self) -> Desk:
        """Open it and accept ``op``."""
        await self.open()
        await self.lane.accept(Prompt("go"), operation_id="op")
        return self

    async def restart(self, **options: Any) -> Desk:
        """Another process: the session is closed and opened anew."""
        await self.session.close()
        return await self.open(**options)

    async def waits(self) -> list[Approval]:
        """Drive until it waits; what for."""
        outcome = await self.lane.drive("op")
        assert isinstance(outcome, Waiting), outcome
        return self.session.approvals()

    async def texts(self) -> list[str]:
        """The results so far."""
        return [each.text for each in await self.lane.messages() if each.__class__.__name__ == "ToolResultMessage"]

    async def held(self) -> dict[str, dict[str, bytes]]:
        """What is stored of questions and answers."""
        spaces = ("pending.approval", "op.decision", "op.args")
        return {space: await self.session._runtime.storage.values(space) for space in spaces}

    def statuses(self) -> list[str]:
        """The calls of the open batch."""
        operation = self.lane.inspect().operation
        return [] if operation is None else [call.status for call in operation.calls]

    def _tool(self, name: str, *, body: Any = None, **options: Any) -> Tool[Any, Any]:
        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
            label = f"{name}:{arguments.get('x', '')}"
            self.runs.append(label)
            return f"{label} done" if body is None else await body(arguments, ctx)

        return Tool(name, run, **options)
