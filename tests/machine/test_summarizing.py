"""Claim: a summary takes along what is known of its run, and gives it back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import Checkpoint, Summarizing, SummaryWait
from agentlane.machine.facts import (
    AbortRequested,
    Change,
    End,
    Fact,
    Failed,
    Finished,
    IllegalStep,
    ModelUnavailable,
    RequestIntended,
    Summarized,
    SummaryGiven,
    SummaryIntended,
    SummaryInterrupted,
    SummaryRefused,
)
from agentlane.machine.planning import SummaryView, View, Waiting, plan
from agentlane.machine.table import step
from agentlane.machine.verdicts import AskModel
from tests.machine.build import GONE, LATER, LIMIT, OVERLOADED, REFUSED, answer, rules

RULES = rules()
TOO_LONG = ErrorInfo(code="context_overflow", message="too long")
WITHOUT = Summarized(answer(stop_reason="error", error=REFUSED), now=0, jitter=0.0)
STOPPED = Summarized(answer(stop_reason="aborted"), now=0, jitter=0.0)


def asked_for(reason: str = "overflow", **more: object) -> Summarizing:
    options = {"task": "s", "reason": reason, "response_id": "r", "attempt": 1, "trigger": "a1", "overflow": TOO_LONG}
    return Summarizing(**(options | {"turn": 2} | more))  # type: ignore[arg-type]


def waited_for() -> SummaryWait:
    return SummaryWait(
        task="s", reason="overflow", attempt=1, trigger="a1", not_before=5, error=REFUSED, turn=2, overflow=TOO_LONG
    )


TO_SUMMARIZE = Checkpoint(next="summarize", trigger="a1", turn=2, overflow=TOO_LONG)
SUMMARIZED = Checkpoint(next="respond", trigger="a1", turn=2, overflow=TOO_LONG, compacted=True)


@pytest.mark.parametrize(
    ("state", "facts"),
    [
        (TO_SUMMARIZE, [AbortRequested(1), Finished()]),
        (TO_SUMMARIZE, [Failed(LIMIT)]),
        (TO_SUMMARIZE, [SummaryRefused("overflow", REFUSED)]),
        (SUMMARIZED, [AbortRequested(1), Finished()]),
        (SUMMARIZED, [Failed(LIMIT)]),
        (SUMMARIZED, [ModelUnavailable(GONE)]),
        (asked_for(), [WITHOUT]),
        (asked_for(), [AbortRequested(1), STOPPED]),
        (asked_for(), [AbortRequested(1), SummaryInterrupted("r2", now=0, jitter=0.0)]),
        (asked_for(), [SummaryInterrupted("r2", now=0, jitter=0.0, unavailable=GONE)]),
        (asked_for("threshold"), [AbortRequested(1), STOPPED]),
        (waited_for(), [AbortRequested(1), Finished()]),
        (waited_for(), [Failed(LIMIT)]),
        (waited_for(), [SummaryRefused("overflow", GONE)]),
        (SUMMARIZED, [RequestIntended(LATER), AbortRequested(1)]),
    ],
)
def test_a_turn_whose_request_was_too_long_counts_once_wherever_the_run_ends(state: object, facts: list[Fact]) -> None:
    after: Any = state
    changes: tuple[Change, ...] = ()
    for fact in facts:
        taken = step(after, fact, RULES)
        after, changes = taken.state, taken.changes

    if after is None:
        assert isinstance(changes[-1], End) and changes[-1].turns == 3
    else:
        assert after.turn == 3


STEERED = Checkpoint(next="respond", trigger="s0", turn=2, placed=True)
GIVEN = Summarized(answer(text="said"), now=0, jitter=0.0)
BUSY = Summarized(answer(stop_reason="error", error=OVERLOADED), now=0, jitter=0.0)
INTENDED = SummaryIntended("s", "threshold", "r")


@pytest.mark.parametrize(
    "facts",
    [
        [SummaryRefused("threshold", REFUSED)],
        [SummaryGiven("s", "threshold", "mine")],
        [INTENDED, GIVEN],
        [INTENDED, WITHOUT],
        [INTENDED, BUSY, INTENDED, GIVEN],
        [INTENDED, BUSY, SummaryRefused("threshold", GONE)],
        [INTENDED, SummaryInterrupted("r2", now=0, jitter=0.0), GIVEN],
    ],
)
def test_one_steer_for_each_request_stays_one_if_something_is_summarized_before_it(facts: list[Fact]) -> None:
    one = replace(RULES, steering="one")
    after: Any = STEERED
    for fact in facts:
        after = step(after, fact, one).state

    assert plan(after, View(now=9_000, waiting=Waiting(steers=1)), one) == AskModel()


@pytest.mark.parametrize("known", ["compacted", "unsummarized"])
def test_once_looked_at_or_failed_nothing_is_summarized_for_a_request_that_would_be_too_long(known: str) -> None:
    state = Checkpoint(next="respond", trigger="a1", compacted=known == "compacted", unsummarized=known != "compacted")
    facts = (INTENDED, SummaryGiven("s", "threshold", "mine"), SummaryRefused("threshold", REFUSED))

    assert plan(state, View(now=0, summary=SummaryView("threshold")), RULES) == AskModel()
    for fact in facts:
        with pytest.raises(IllegalStep, match="nothing is to be summarized here"):
            step(state, fact, RULES)
