"""Defects of summaries, put into the library on purpose, each with a program that tells."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.entries import Compaction
from agentlane.driver import apart
from agentlane.driver.draft import OperationDraft
from agentlane.driver.summarizing import Summaries, Wanted
from agentlane.driver.summary_steps import SummarySteps
from agentlane.machine import compaction, planning, summarizing, table, verdicts
from agentlane.machine.context import ModelContext
from agentlane.machine.facts import SummaryInterrupted
from tests.stateful.defect import Defect, above_stores
from tests.stateful.hooks import Hook
from tests.stateful.programs import Abort, AppendEntry, Drive, Kill, Program, Reply, Resume, Run
from tests.stateful.summing import Compact, Leave, Summing
from tests.stateful.talk import Say

DONE, HANG, LONG, FAILS = Reply(), Reply("hang"), Reply("long"), Reply("fail", after_ms=0)
TALK = (Run(), Run(), Run())


def _tail_forgotten(patch: pytest.MonkeyPatch) -> None:
    compact = ModelContext._compact

    def without(self: ModelContext, entry_id: str, body: Compaction) -> None:
        compact(self, entry_id, replace(body, kept_from=None))

    patch.setattr(ModelContext, "_compact", without)


def _summary_not_shown(patch: pytest.MonkeyPatch) -> None:
    compact = ModelContext._compact

    def without(self: ModelContext, entry_id: str, body: Compaction) -> None:
        compact(self, entry_id, body)
        self._messages[0] = replace(self._messages[0], content=())

    patch.setattr(ModelContext, "_compact", without)


def _earlier_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Summaries, "earlier", property(lambda self: None))


def _not_spent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OperationDraft, "_spend_summary", lambda self, change: None)


def _unanswered_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction, "_latest", lambda pieces, unanswered: len(pieces))


def _tried_for_ever(patch: pytest.MonkeyPatch) -> None:
    take = summarizing.take_summary

    def once(state: Any, fact: Any, rules: Any) -> Any:
        return take(replace(state, retries=0), fact, rules)

    patch.setitem(table.TABLE, (summarizing.Summarizing, summarizing.Summarized), once)  # type: ignore[arg-type]


def _restarts_not_counted(patch: pytest.MonkeyPatch) -> None:
    interrupt = summarizing.interrupt_summary

    def once(state: Any, fact: Any, rules: Any) -> Any:
        return interrupt(replace(state, restarts=0), fact, rules)

    patch.setitem(table.TABLE, (summarizing.Summarizing, SummaryInterrupted), once)  # type: ignore[arg-type]


def _keep_not_taken(patch: pytest.MonkeyPatch) -> None:
    prepared = Summaries._prepared

    def usual(self: Summaries, reason: Any) -> Wanted | None:
        meta, compact = self._operation.meta, self._operation.meta.compact
        if compact is None:
            return prepared(self, reason)
        self._operation.meta = replace(meta, compact=replace(compact, keep_tokens=None))
        try:
            return prepared(self, reason)
        finally:
            self._operation.meta = meta

    patch.setattr(Summaries, "_prepared", usual)


def _coming_not_counted(patch: pytest.MonkeyPatch) -> None:
    total = Summaries._total
    patch.setattr(Summaries, "_total", lambda self, count: total(self, count) - 100_000)


def _label_lost(patch: pytest.MonkeyPatch) -> None:
    move = OperationDraft._move_lane

    def silent(self: OperationDraft) -> None:
        writes = len(self.path.writes)
        move(self)
        label = [each for each in self.path.writes[writes:] if "label" in repr(getattr(each, "address", ""))]
        for each in label:
            self.path.writes.remove(each)

    patch.setattr(OperationDraft, "_move_lane", silent)


def _whole_path_left(patch: pytest.MonkeyPatch) -> None:
    async def nothing(runtime: Any, tip: Any, target: Any) -> None:
        return None

    patch.setattr(apart, "_base", nothing)


def _too_long_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Summaries, "can_recover", lambda self, state: False)


def _hook_not_asked(patch: pytest.MonkeyPatch) -> None:
    def unasked(self: Any, draft: Any) -> Any:
        wanted = self._summaries.wanted(draft)
        return None if wanted is None else wanted.shown

    patch.setattr(SummarySteps, "view", unasked)


def _summary_under_an_abort(patch: pytest.MonkeyPatch) -> None:
    def on(state: Any, view: Any) -> Any:
        return verdicts.AskSummary(state.reason)

    patch.setattr(planning, "_plan_next_summary", on)


def _writes_forgotten(patch: pytest.MonkeyPatch) -> None:
    place = planning._plan_placement

    def later(state: Any, view: Any, rules: Any) -> Any:
        return None if state.next == "end" else place(state, view, rules)

    patch.setattr(planning, "_plan_placement", later)


def _program(*steps: Any, prompts: Any = ((DONE,),), summaries: Any = (), hooks: Any = (), **policy: Any) -> Program:
    return Program(tuple(steps), prompts, hooks, Summing(**policy), summaries)


SUMMING_DEFECTS = above_stores(
    Defect("a compaction keeps no tail", _tail_forgotten, _program(*TALK, Compact(keep=2), Run())),
    Defect("a summary is not shown", _summary_not_shown, _program(*TALK, Compact(keep=2), Run())),
    Defect(
        "a summary does not know the one before it",
        _earlier_left_out,
        _program(*TALK, Compact(keep=2), *TALK, Compact(keep=2)),
    ),
    Defect("a summary costs nothing", _not_spent, _program(*TALK, Compact(keep=0))),
    Defect(
        "what is not answered is summarized",
        _unanswered_cut,
        _program(*TALK, AppendEntry(text="a"), AppendEntry(assistant=False), Compact(keep=0)),
    ),
    Defect("a summary is tried without end", _tried_for_ever, _program(*TALK, Compact(keep=0), summaries=(FAILS,) * 4)),
    Defect(
        "deaths in a summary are not counted",
        _restarts_not_counted,
        _program(*TALK, Compact(keep=0), *(Kill(), Resume()) * 3, summaries=(HANG,) * 5),
    ),
    Defect("what is to be kept is not looked at", _keep_not_taken, _program(*TALK, Compact(keep=2), Run(), keep=4)),
    Defect("a window is longer than it is", _coming_not_counted, _program(*TALK, *TALK, window=4, keep=1)),
    Defect("a label is lost with a summary", _label_lost, _program(*TALK, Leave(to=1, label="left"))),
    Defect("all of a path is summarized as left", _whole_path_left, _program(*TALK, Leave(to=1), Run())),
    Defect(
        "a request that was too long is the end",
        _too_long_for_good,
        _program(Run(), Run(), Run(prompt=1), prompts=((DONE,), (LONG,))),
    ),
    Defect(
        "hooks have no word in summaries",
        _hook_not_asked,
        _program(*TALK, Compact(keep=0), hooks=(Hook("before_compaction", "block", plain=True),)),
    ),
    Defect(
        "an abort does not end the wait for a summary",
        _summary_under_an_abort,
        _program(
            *TALK,
            Compact(keep=0, driven=False),
            Drive(wait=False),
            Abort(),
            Drive(),
            summaries=(Reply("fail", after_ms=37), HANG),
        ),
    ),
    Defect(
        "what waits for a compaction is not placed behind it",
        _writes_forgotten,
        _program(*TALK, Compact(keep=0, driven=False), AppendEntry(), Say(), Drive(), Run()),
    ),
)
