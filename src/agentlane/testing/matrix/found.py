"""What a process finds under way when it opens a session: requests and calls that were left without an end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.messages import AssistantMessage, ToolCallPart
from agentlane.data.operations import (
    EffectGranted,
    EffectPending,
    Generating,
    OperationConfig,
    OperationState,
    ReplayPolicy,
    Summarizing,
    Tools,
)
from agentlane.driver.views import resolve_call
from agentlane.ids import call_id
from agentlane.storage.contract import SessionStorage
from agentlane.testing.decoded import state_of
from agentlane.testing.matrix.family import named

Current: TypeAlias = Literal["never", "safe", "idempotent", "ask", "missing", "inactive", "refused"]
"""What a process has for a call: its tool with a policy; no such tool; one that is not active; one that refuses the
arguments."""


class FoundCall(NamedTuple):
    """A call that a process found begun and without an outcome.

    ``again`` is whether it may run again in there, and ``asks`` whether it may if a person says so, which a permit has
    from earlier; ``maybe`` that an abort came later and may have been first.
    """

    life: int
    call_id: str
    operation_id: str
    stored: ReplayPolicy
    current: Current
    cancelled: bool
    again: bool
    maybe: bool = False
    asks: bool = False


class FoundRequest(NamedTuple):
    """A request that a process found without an answer, by the id of the answer that it was to have."""

    life: int
    operation_id: str
    answer: str
    cancelled: bool


class FoundSummary(NamedTuple):
    """A request for a summary that a process found without an answer, by the id that its usage is charged under."""

    life: int
    operation_id: str
    task: str
    response_id: str


class FoundState(NamedTuple):
    """Where an operation stood when a process opened the session."""

    at: str
    cancelled: bool
    calls: tuple[str, ...]


class Findings:
    """What one process found, judged by the agent that it has."""

    def __init__(self, life: int, agent: Agent[Any, Any] | None) -> None:
        self.life = life
        self.states: list[FoundState] = []
        self.requests: list[FoundRequest] = []
        self.summaries: list[FoundSummary] = []
        self.calls: dict[str, FoundCall] = {}
        self.left: tuple[Hashable, ...] = ()
        """All that the session held: equal where two processes left the same."""
        self._agent = agent
        self._batches: dict[str, tuple[Tools, Sequence[ToolCallPart]]] = {}

    async def read(self, storage: SessionStorage, left: tuple[Hashable, ...]) -> None:
        """Read every open operation, and take note of what is there: ``left`` is all of it."""
        self.left = left
        configs = await storage.values(addresses.OP_CONFIG)
        for id, payload in (await storage.values(addresses.OP_STATE)).items():
            state = state_of(payload)
            self.states.append(found_state(state))
            if isinstance(state, Generating):
                cancelled = state.cancel_requested_at is not None
                self.requests.append(FoundRequest(self.life, id, state.response_id, cancelled))
            elif isinstance(state, Summarizing):
                self.summaries.append(FoundSummary(self.life, id, state.task, state.response_id))
            elif isinstance(state, Tools):
                row = (await storage.entries([state.answer]))[0]
                body = None if row is None else codec.BODY.decode(row.payload, state.answer)
                if isinstance(body, AssistantMessage):
                    self._batches[id] = (state, body.calls)
                    self.configured(id, configs[id])

    def configured(self, operation_id: str, payload: bytes) -> None:
        """Judge an operation's calls by its configuration: when it is opened, and again when it is set anew."""
        found = self._batches.get(operation_id)
        if found is None or self._agent is None:
            return
        state, calls = found
        config = codec.CONFIG.decode(payload, "op.config")
        for index, call in enumerate(state.calls):
            if not isinstance(call, EffectPending):
                continue
            agent = named(self._agent, config.agent)
            view = resolve_call(agent, config, calls[index]).view
            cancelled = state.cancel_requested_at is not None
            id = call_id(state.answer, index)
            current = self._current(agent, config, calls[index].name, problem=view.problem)
            # The rule of replays in words of its own: what is judged must not be its own judge.
            twice = ("safe", "idempotent")
            bounded = call.replays < config.limits.max_replays
            again = not cancelled and bounded and call.policy in twice and current in twice
            able = ("safe", "idempotent", "ask")
            asks = not cancelled and bounded and not again and call.policy in able and current in able
            permit = isinstance(call, EffectGranted) and call.permit
            again = again or (asks and permit)
            judged = FoundCall(self.life, id, operation_id, call.policy, current, cancelled, again, asks=asks)
            self.calls[id] = judged

    def aborted(self, operation_id: str) -> None:
        """An abort is committed: what may run again by now may not have begun to."""
        for id, call in self.calls.items():
            if call.operation_id == operation_id and call.again:
                self.calls[id] = call._replace(maybe=True)

    def _current(self, agent: Agent[Any, Any], config: OperationConfig, name: str, *, problem: str | None) -> Current:
        tool = agent.tools.get(name)
        if tool is None:
            return "missing"
        if name not in config.tools:
            return "inactive"
        return "refused" if problem is not None else tool.options.replay


def found_state(state: OperationState) -> FoundState:
    """The state in words: those that ``inspect()`` uses, a checkpoint with what is next."""
    at = state.__struct_config__.tag
    calls = state.calls if isinstance(state, Tools) else ()
    next = getattr(state, "next", None)
    return FoundState(
        at=f"{at}({next})" if next else str(at),
        cancelled=state.cancel_requested_at is not None,
        calls=tuple(str(call.__struct_config__.tag) for call in calls),
    )
