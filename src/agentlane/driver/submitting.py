"""Submitting: a prompt where the lane is idle, steering where it is not; either way with a receipt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.inbox import Receipt, queued_digest
from agentlane.data.messages import UserMessage
from agentlane.data.requests import Prompt
from agentlane.data.results import Admitted
from agentlane.data.writes import SetValue, Write
from agentlane.driver import queueing, verbs
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.queueing import Again
from agentlane.names import check_name
from agentlane.storage.contract import Commit


class _Submission(NamedTuple):
    """What is submitted, checked and encoded before any line is entered."""

    prepared: verbs.Prepared
    sealed: queueing.Sealed
    digest: str
    request_id: str | None


async def submit(
    lane: LaneCore, agent: Agent[Any, Any], message: str | UserMessage | Prompt, request_id: str | None
) -> Receipt:
    """Accept a prompt, or queue it on a lane whose operation is open. See ``AgentLane.submit``."""
    lane.check_writable()
    prompt = queueing.as_prompt(message)
    submission = _prepared(lane, prompt, None if request_id is None else check_name(request_id, "request id"))
    await lane.load()
    inside = lane.idle.inside()
    while True:
        if submission.prepared.lane != lane.name:
            submission = _prepared(lane, prompt, submission.request_id)
        looked = lane.receipts.count
        if submission.request_id is not None:
            known = await queueing.receipt_of(lane, submission.request_id)
            if known is not None:
                return queueing.same_content(known, submission.digest)
        if lane.operation is None:
            await lane.idle.admission(inside=inside)
        outcome = await lane.line.run(
            lambda given=submission, looked=looked: (  # type: ignore[misc]
                _decide(lane, agent, given, looked, inside=inside)
            )
        )
        if isinstance(outcome, Receipt):
            return outcome


def _prepared(lane: LaneCore, prompt: Prompt, request_id: str | None) -> _Submission:
    prepared = verbs.prepare(lane, prompt)
    payloads, bodies = zip(*prepared.sealed, strict=True)
    digest = queued_digest("steer", payloads, submitted=True)
    return _Submission(prepared, queueing.Sealed(payloads, bodies), digest, request_id)


def _decide(
    lane: LaneCore, agent: Agent[Any, Any], submission: _Submission, looked: int, *, inside: bool
) -> Decision[Receipt | Again] | Done[Receipt | Again]:
    if submission.request_id is not None and lane.receipts.since(submission.request_id, looked):
        return Done(Again())
    if lane.operation is not None:
        return _queued(lane, submission)
    return Done(Again()) if lane.idle.holds(inside=inside) else _accepted(lane, agent, submission)


def _queued(lane: LaneCore, submission: _Submission) -> Decision[Receipt | Again]:
    decision = queueing.decide_queue(lane, "steer", submission.sealed, submission.request_id, submitted=True)

    def publish(commit: Commit) -> Receipt | Again:
        queued = decision.publish(commit)
        return Receipt(
            request_id=queued.request_id or queued.id,
            lane=lane.name,
            kind="steer",
            entries=queueing.entry_ids(queued.id, len(submission.sealed.bodies)),
            digest=submission.digest,
            submitted=True,
        )

    return Decision(decision.writes, "queue", publish)


def _accepted(
    lane: LaneCore, agent: Agent[Any, Any], submission: _Submission
) -> Decision[Receipt | Again] | Done[Receipt | Again]:
    id = lane.runtime.ids.new()

    def receipt(inputs: tuple[str, ...]) -> Receipt:
        return Receipt(
            request_id=submission.request_id or inputs[0],
            lane=lane.name,
            kind="steer",
            entries=inputs,
            digest=submission.digest,
            submitted=True,
            state="taken",
            operation_id=id,
        )

    def writes(inputs: tuple[str, ...]) -> Sequence[Write]:
        made = receipt(inputs)
        return [SetValue(addresses.receipt(lane.name, made.request_id), codec.encode(made))]

    decision = verbs.decide_accept(lane, agent, id, submission.prepared, lane.runtime.settled_count, UNSET, writes)
    if isinstance(decision, Done):  # the lane was renamed
        return Done(Again())

    def publish(commit: Commit) -> Receipt | Again:
        admitted = decision.publish(commit)
        if not isinstance(admitted, Admitted):
            return admitted
        made = receipt(admitted.inputs)
        lane.receipts.add(made.request_id)
        return made

    return Decision(decision.writes, decision.boundary, publish, decision.refused)
