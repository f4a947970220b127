"""Claim: a result that no tool gave says exactly what is known of its call, as an error, under the call's own name."""

from __future__ import annotations

import pytest

from agentlane.data.messages import TextPart, ToolResultMessage, UserPart
from agentlane.machine.outcomes import (
    ABORTED,
    CUT,
    INTERRUPTED,
    NOT_STARTED,
    PROGRESS,
    STRANDED,
    error_result,
    interrupted,
    settled_without,
)
from agentlane.machine.verdicts import SettledWithout
from tests.machine.build import call

SAVED: tuple[UserPart, ...] = (TextPart(text="row 1"), TextPart(text="row 2"))


def saying(*texts: str) -> ToolResultMessage:
    content = tuple(TextPart(text=text) for text in texts)
    return ToolResultMessage(call_id="c3", name="copy", content=content, is_error=True)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("not_started", NOT_STARTED),
        ("interrupted", INTERRUPTED),
        ("cut", CUT),
        ("aborted", ABORTED),
        ("stranded", STRANDED),
        ("refused", "The tool 'copy' is not available."),
    ],
)
def test_each_reason_has_its_text(why: SettledWithout, text: str) -> None:
    assert settled_without(call(3, "copy"), why) == saying(text)


@pytest.mark.parametrize("why", ["not_started", "interrupted", "cut", "refused", "aborted", "stranded"])
def test_the_problem_is_told_where_a_call_was_refused_and_progress_where_it_was_interrupted(
    why: SettledWithout,
) -> None:
    told = settled_without(call(3, "copy"), why, problem="path: a text is needed", progress=SAVED)

    match why:
        case "refused":
            assert told == saying("path: a text is needed")
        case "interrupted":
            assert told == saying(PROGRESS, "row 1", "row 2", INTERRUPTED)
        case "aborted" | "stranded":
            text = ABORTED if why == "aborted" else STRANDED
            assert told == saying(PROGRESS, "row 1", "row 2", text)
        case _:
            assert told == settled_without(call(3, "copy"), why)


def test_an_interruption_of_another_kind_has_progress_before_what_is_known() -> None:
    assert interrupted(call(3, "copy"), ABORTED, SAVED) == saying(PROGRESS, "row 1", "row 2", ABORTED)
    assert interrupted(call(3, "copy"), ABORTED, ()) == saying(ABORTED)


def test_an_error_result_is_one_text() -> None:
    assert error_result(call(3, "copy"), "no") == saying("no")


def test_the_texts_are_part_of_the_contract() -> None:
    assert [INTERRUPTED, NOT_STARTED, ABORTED, CUT, STRANDED, PROGRESS] == [
        "The call was about to run when the process stopped, and no outcome was saved. It may not have started, may "
        "have run in part, or may have finished. Check before doing it again.",
        "The run was aborted before this call started. It had no effect.",
        "The run was aborted while this call was running. It may have run in part. Check before doing it again.",
        "The answer was cut off at its length limit, so none of its calls was run. Ask again with a shorter answer, "
        "or in smaller steps.",
        "This call stopped in the middle to ask a person. There is an answer, but the call may not run again: its tool "
        "is gone or has changed since. What it did before it asked is done. Check before doing it again.",
        "Last progress that was saved before the call was interrupted:",
    ]
