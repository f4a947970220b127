"""What people answered in a history, against what was started and what results say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentlane.data import addresses, codec
from agentlane.data.approvals import Decision
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import Tools, WaitingExternal
from agentlane.data.writes import SetValue
from agentlane.ids import call_id
from agentlane.machine.outcomes import DENIED, EXPIRED, STRANDED
from agentlane.testing.matrix.family import family_of, tool_of
from agentlane.testing.matrix.history import History


def decisions_of(history: History[Any]) -> dict[str, list[Decision]]:
    """Every answer that may have become true, by the id of its call."""
    found: dict[str, list[Decision]] = {}
    for commit, _ in history.trace.commits() if history.wrote(addresses.OP_DECISION) else ():
        for write in commit.writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_DECISION:
                decision = codec.DECISION.decode(write.payload, "op.decision")
                found.setdefault(decision.call_id, []).append(decision)
    return found


def is_refusal(history: History[Any], id: str, body: ToolResultMessage) -> bool:
    """Whether a person, or nobody in time, did not allow the call, and its result says that."""
    for decision in decisions_of(history).get(id, ()):
        if decision.kind == "call" and not decision.allow and body.is_error:
            text = EXPIRED if decision.expired else DENIED
            if body.text == (f"{text} Reason: {decision.reason}" if decision.reason else text):
                return True
    return False


def answers_of(history: History[Any], id: str) -> int:
    """How often people answered what the call's tool had asked: it starts again after each."""
    return sum(each.kind == "question" for each in decisions_of(history).get(id, ()))


def was_stranded(history: History[Any], id: str, tool: str, body: ToolResultMessage) -> bool:
    """Whether the call was answered, a process was there that must not run it again, and its result says that."""
    here = [life.own_agent for life in history.lives if hasattr(life, "own_agent")]
    tools = [next((each.tools[tool] for each in family_of(agent) if tool in each.tools), None) for agent in here]
    lost = any(each is None or each.options.replay not in ("safe", "idempotent") for each in tools)
    return STRANDED in body.text and body.is_error and lost and bool(answers_of(history, id))


def was_deferred(history: History[Any], id: str) -> bool:
    """Whether the call waited for its result to be delivered."""
    for commit, _ in history.trace.commits():
        for write in commit.writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                state = codec.STATE.decode(write.payload, "op.state")
                for index, call in enumerate(state.calls) if isinstance(state, Tools) else ():
                    if isinstance(call, WaitingExternal) and id == call_id(str(state.answer), index):
                        return True
    return False


def check_asked(history: History[Any]) -> Iterator[str]:
    """A call that people must allow is started by a yes of its own, with the arguments that the yes is about."""
    decisions = decisions_of(history)
    arguments = _arguments(history)
    for id in dict.fromkeys(each.call_id for each in history.witness.starts):
        starts = history.witness.begun(id)
        what = f"call {id} of {starts[0].tool!r}"
        tool = tool_of(history.lives[starts[0].life - 1].own_agent, starts[0].tool)
        yes = [each for each in decisions.get(id, ()) if each.allow]
        first = [each for each in yes if each.kind == "call"]
        if tool.options.approval is True and not first:
            yield f"{what} was started, and nobody allowed it"
        if any(each.changed for each in first) and any(each.arguments != arguments.get(id) for each in starts):
            yield f"{what} was started with {starts[0].arguments}, and {arguments.get(id)} was allowed"
        found = [each for each in history.found_calls if each.call_id == id]
        free = sum(each.again and not each.asks for each in found)
        again = sum(each.kind == "replay" for each in yes)
        answered = answers_of(history, id)
        if len(starts) > 1 + free + again + answered:
            yield f"{what} was started {len(starts)} times, and {again} replays of it were allowed"


def _arguments(history: History[Any]) -> dict[str, Any]:
    """Arguments given by people, by the id of their call."""
    found: dict[str, Any] = {}
    for commit, _ in history.trace.commits() if history.wrote(addresses.OP_ARGS) else ():
        for write in commit.writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_ARGS:
                found[write.address.key.split("|")[1]] = codec.JSON.decode(write.payload, "op.args")
    return found
