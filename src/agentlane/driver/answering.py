"""Answering what tools ask: each answer one step of the lane's line, used for its question alone."""

from __future__ import annotations

from typing import Any

from agentlane.data import codec
from agentlane.data.approvals import Decision
from agentlane.data.border import clean_json
from agentlane.data.reads import id_text
from agentlane.driver import line
from agentlane.driver.deciding import Gone, no_longer_pending, open_question, text_or_none
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.errors import InvalidMessage
from agentlane.machine.facts import QuestionAnswered
from agentlane.machine.table import step
from agentlane.storage.contract import Commit


async def answer(lane: LaneCore, question_id: str, value: Any, *, by: str | None) -> Decision:
    """Commit the answer to a tool's question. See ``AgentLane.answer``."""
    lane.check_writable()
    payload = codec.encode(clean_json(value, "value"))
    by = text_or_none(by, "by")
    id = id_text(question_id)
    await lane.load()
    found = None if id is None else open_question(lane, id)
    if id is None or found is None:
        await no_longer_pending(lane, question_id)
    approval = found[2]
    if approval.kind != "question":
        raise InvalidMessage(
            f"{id} asks whether the tool {approval.tool!r} may run, which is for lane.decide(), with a yes or a no",
            path="question_id",
        )
    try:
        decision: Decision = await lane.line.run(lambda: _answer(lane, id, payload, by=by))
    except Gone:
        await no_longer_pending(lane, id)
    return decision


def _answer(lane: LaneCore, id: str, payload: bytes, *, by: str | None) -> line.Decision[Decision]:
    found = open_question(lane, id)
    if found is None:
        raise Gone
    operation, index, asked = found
    now = lane.runtime.clock.now_ms()
    decision = Decision(
        approval_id=id,
        call_id=asked.call_id,
        tool=asked.tool,
        kind="question",
        allow=True,
        digest=asked.digest,
        at=now,
        by=by,
    )
    draft = OperationDraft(operation, lane.name, lane.tip, now=now, inbox=lane.inbox)
    draft.answer(index, decision, asked.name, payload)
    draft.take(step(draft.state, QuestionAnswered(index, id), operation.rules))

    def publish(commit: Commit) -> Decision:
        draft.hand_over()
        operation.answers.setdefault(index, {})[asked.name] = payload
        lane.take_path(draft.path)
        lane.poke()
        return decision

    return line.Decision(draft.writes(), draft.boundary, publish)
