"""The rows of the table about requests that were too long, and what a run knows of its summaries on its way."""

from __future__ import annotations

from msgspec.structs import replace

from agentlane.data.messages import user
from agentlane.data.operations import Checkpoint, Generating, Planned, RetryWait, Tools
from agentlane.ids import call_id
from agentlane.machine.facts import (
    Answered,
    End,
    Finished,
    FollowedUp,
    OutcomesArrived,
    PlaceAnswer,
    PlaceInput,
    PlaceItems,
    PlaceResult,
    QueuedPlaced,
    RequestIntended,
    RequestModel,
    Step,
)
from tests.machine.build import ANSWER, LATER, OVERLOADED, Row, answer, cancelled, outcome, result
from tests.machine.summary_rows import BUSY, COMPACTED, LONG, OVERFLOWED, TOO_LONG

ASKED_AGAIN = Generating(
    response_id=ANSWER, attempt=1, turn=3, answer="a0", overflow=TOO_LONG, compacted=True, unsummarized=True
)
"""The second request since the first was too long, of a run of which a summary failed."""
ASKED_LATER = RetryWait(
    attempt=1,
    not_before=1_250,
    error=OVERLOADED,
    retries=1,
    turn=3,
    answer="a0",
    overflow=TOO_LONG,
    compacted=True,
    unsummarized=True,
)
KNOWN = Checkpoint(next="respond", trigger="e0", turn=2, answer="a0", overflow=TOO_LONG, unsummarized=True)
BATCH = Tools(calls=(Planned(),), answer=ANSWER, turn=3, unsummarized=True)

OVERFLOW_ROWS = [
    Row(
        "a request that was too long: its turn is not over, and what it showed is to be summarized",
        replace(ASKED_AGAIN, overflow=None, attempt=2, retries=1, restarts=1, model_index=1),
        Answered(LONG, now=1_000, jitter=0.0, fallback=2, summarize=True),
        Step(
            Checkpoint(next="summarize", trigger=ANSWER, turn=2, answer="a0", overflow=TOO_LONG, unsummarized=True),
            (PlaceAnswer(ANSWER, LONG),),
            boundary="settlement",
        ),
    ),
    Row(
        "a request that was too long, and nothing can be summarized",
        replace(ASKED_AGAIN, overflow=None),
        Answered(LONG, now=1_000, jitter=0.0),
        Step(
            None,
            (PlaceAnswer(ANSWER, LONG), End("failed", 3, ANSWER, code=TOO_LONG.code, error=TOO_LONG)),
            boundary="settlement",
        ),
    ),
    Row(
        "the second request is too long as well: nothing more is summarized for it",
        ASKED_AGAIN,
        Answered(LONG, now=1_000, jitter=0.0, summarize=True),
        Step(
            None,
            (PlaceAnswer(ANSWER, LONG), End("failed", 3, ANSWER, code=TOO_LONG.code, error=TOO_LONG)),
            boundary="settlement",
        ),
    ),
    Row(
        "the second request since the first was too long is of the same turn",
        replace(KNOWN, compacted=True),
        RequestIntended(ANSWER),
        Step(ASKED_AGAIN, effects=(RequestModel(ANSWER, 1, 0),), boundary="intent"),
    ),
    Row(
        "the second request fails for now, and what is known is kept",
        ASKED_AGAIN,
        Answered(BUSY, now=1_000, jitter=0.0, summarize=True),
        Step(ASKED_LATER, (PlaceAnswer(ANSWER, BUSY),), boundary="settlement"),
    ),
    Row(
        "its next attempt knows it too",
        ASKED_LATER,
        RequestIntended(LATER),
        Step(
            replace(ASKED_AGAIN, response_id=LATER, attempt=2, retries=1),
            effects=(RequestModel(LATER, 2, 0),),
            boundary="intent",
        ),
    ),
    Row(
        "with calls the need is over, and a failed summary is not forgotten",
        ASKED_AGAIN,
        Answered(answer(1), now=1_000, jitter=0.0),
        Step(BATCH, (PlaceAnswer(ANSWER, answer(1)),), boundary="settlement"),
    ),
    Row(
        "nor is it when the batch ends",
        BATCH,
        OutcomesArrived((outcome(0),)),
        Step(
            Checkpoint(next="respond", trigger=call_id(ANSWER, 0), turn=3, answer=ANSWER, unsummarized=True),
            (PlaceResult(ANSWER, 0, result(0)),),
            boundary="outcome_placed",
        ),
    ),
    Row(
        "nor by an answer that may end the run",
        ASKED_AGAIN,
        Answered(answer(text="done"), now=1_000, jitter=0.0),
        Step(
            Checkpoint(next="finish", trigger=ANSWER, turn=3, answer=ANSWER, unsummarized=True),
            (PlaceAnswer(ANSWER, answer(text="done")),),
            boundary="settlement",
        ),
    ),
    Row(
        "nor where hooks have more to say",
        Checkpoint(next="finish", trigger=ANSWER, turn=3, answer=ANSWER, unsummarized=True),
        FollowedUp((("f0", user("and this?")),)),
        Step(
            Checkpoint(next="respond", trigger="f0", turn=3, answer=ANSWER, unsummarized=True),
            (PlaceInput("f0", user("and this?")),),
            boundary="follow_up",
        ),
    ),
    Row(
        "input that is placed may need a summary of its own, and the request was too long all the same",
        replace(KNOWN, compacted=True),
        QueuedPlaced(("s0",), "s0"),
        Step(replace(KNOWN, trigger="s0", placed=True), (PlaceItems(("s0",)),), boundary="placement"),
    ),
    Row(
        "a deferred write needs none",
        replace(KNOWN, compacted=True),
        QueuedPlaced(("w0",)),
        Step(replace(KNOWN, compacted=True), (PlaceItems(("w0",)),), boundary="placement"),
    ),
    Row(
        "a deferred write at a compaction's end",
        COMPACTED,
        QueuedPlaced(("w0",)),
        Step(COMPACTED, (PlaceItems(("w0",)),), boundary="placement"),
    ),
    Row(
        "an abort between a request that was too long and its summary",
        cancelled(OVERFLOWED),
        Finished(),
        Step(None, (End("aborted", 3, "a0"),), boundary="terminal"),
    ),
]
