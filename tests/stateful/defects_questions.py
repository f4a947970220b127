"""Defects of what tools ask, put into the library on purpose, each with a short program on which it shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.operations import EffectResumed
from agentlane.driver import answering
from agentlane.driver.draft import OperationDraft
from agentlane.driver.notes import CallNotes
from agentlane.machine import batches, planning, verdicts
from tests.stateful.defect import Defect, above_stores
from tests.stateful.programs import Abort, Accept, Call, Drive, Kill, Program, Reply, Run
from tests.stateful.questions import Answer


def _forgotten(patch: pytest.MonkeyPatch) -> None:
    answer = OperationDraft.answer

    def forgetting(self: OperationDraft, *what: Any) -> None:
        answer(self, *what)
        self.path.writes.pop()

    patch.setattr(OperationDraft, "answer", forgetting)


def _counts_as_replayed(patch: pytest.MonkeyPatch) -> None:
    begin = batches._begin

    def counting(*what: Any) -> Any:
        begun = begin(*what)
        return replace(begun, replays=begun.replays + 1) if isinstance(begun, EffectResumed) else begun

    patch.setattr(batches, "_begin", counting)


def _for_all_questions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        CallNotes, "answer", lambda self, index, name: next(iter(self._operation.answers.get(index, {}).values()), None)
    )


def _runs_without_its_tool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "may_resume", lambda call, now: True)


def _never_started(patch: pytest.MonkeyPatch) -> None:
    plan = planning._plan_cancelled

    def forgetting(state: Any, view: Any) -> Any:
        verdict = plan(state, view)
        if not isinstance(verdict, verdicts.SettleCalls):
            return verdict
        return verdicts.SettleCalls(tuple((index, "not_started") for index, _ in verdict.calls))

    patch.setattr(planning, "_plan_cancelled", forgetting)


def _answered_again(patch: pytest.MonkeyPatch) -> None:
    close = OperationDraft._close_question

    def keeping(self: OperationDraft, index: int, decision: Any) -> None:
        pending = self.pending
        close(self, index, decision)
        self.pending = pending

    patch.setattr(OperationDraft, "_close_question", keeping)


def _nobody_signs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(answering, "text_or_none", lambda value, path: None)


QUERY, SURVEY = ((Reply("calls", (Call(tool),)),) for tool in ("query", "survey"))
TWICE = (Reply("calls", (Call("safe", hang=1), Call("survey"))),)

QUESTION_DEFECTS = above_stores(
    Defect(
        "an answer is forgotten by a restart",
        _forgotten,
        Program((Accept(), Drive(), Answer(), Kill(), Drive()), (QUERY,)),
    ),
    Defect(
        "starting again with an answer counts as a replay",
        _counts_as_replayed,
        Program((Run(), Answer()), (TWICE,)),
    ),
    Defect("an answer is for all questions", _for_all_questions, Program((Run(), Answer()), (SURVEY,))),
    Defect(
        "a call that has its answer needs no tool",
        _runs_without_its_tool,
        Program((Accept(), Drive(), Answer(), Drive(handle=1)), (QUERY,)),
    ),
    Defect("an abort says of a call that asked that it never ran", _never_started, Program((Run(), Abort()), (QUERY,))),
    Defect(
        "what is answered can be answered again",
        _answered_again,
        Program((Accept(), Drive(), Answer(), Answer()), (QUERY,)),
    ),
    Defect("who has answered is not kept", _nobody_signs, Program((Run(), Answer(signed=True)), (QUERY,))),
)
