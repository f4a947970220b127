"""Defects of what hooks decide about summaries, put into the library on purpose, each with a program that tells."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.messages import AssistantMessage, TextPart
from agentlane.data.operations import Checkpoint
from agentlane.data.usage import Usage
from agentlane.driver import hooks
from agentlane.driver.hooks import Gates
from agentlane.hooks import Decline
from agentlane.machine import summarizing, table
from agentlane.machine.facts import SpendSummary, SummaryGiven, SummaryRefused
from tests.stateful.defect import Defect, above_stores
from tests.stateful.hooks import Hook
from tests.stateful.programs import AppendEntry, Call, Kill, MakeLane, Program, Reply, Resume, Run
from tests.stateful.summing import Compact, Leave, Summing
from tests.stateful.talk import Say

DONE, LONG = Reply(), Reply("long")
CALLS = Reply("calls", (Call("safe"), Call("safe")))
TALK = (Run(), Run(), Run())
WRITTEN = (MakeLane(0), *(AppendEntry(assistant=each) for each in (False, True) * 3))
"""As long a conversation, without that anybody was asked."""
OWN, DECLINES = Hook("before_compaction", "change", plain=True), Hook("before_compaction", "block", plain=True)


def _own_is_charged(patch: pytest.MonkeyPatch) -> None:
    give = summarizing.give_summary

    def charged(state: Any, fact: Any, rules: Any) -> Any:
        step = give(state, fact, rules)
        message = AssistantMessage(content=(TextPart(text=fact.text),), stop_reason="stop", usage=Usage())
        return replace(step, changes=(SpendSummary(fact.task, message, fact.task), *step.changes))

    patch.setitem(table.TABLE, (Checkpoint, SummaryGiven), charged)  # type: ignore[arg-type]


def _decline_ignored(patch: pytest.MonkeyPatch) -> None:
    summary = Gates.summary

    def deaf(self: Gates, state: Any) -> Any:
        said = summary(self, state)
        return None if isinstance(said, Decline) else said

    patch.setattr(Gates, "summary", deaf)


def _declined_overflow_goes_on(patch: pytest.MonkeyPatch) -> None:
    refuse = summarizing.refuse_summary

    def lenient(state: Any, fact: Any, rules: Any) -> Any:
        if fact.reason != "overflow":
            return refuse(state, fact, rules)
        return refuse(replace(state, next="respond"), replace(fact, reason="threshold"), rules)

    patch.setitem(table.TABLE, (Checkpoint, SummaryRefused), lenient)  # type: ignore[arg-type]


def _declined_for_the_run(patch: pytest.MonkeyPatch) -> None:
    refuse = summarizing.refuse_summary

    def final(state: Any, fact: Any, rules: Any) -> Any:
        step = refuse(state, fact, rules)
        return replace(step, state=replace(step.state, unsummarized=True)) if fact.reason == "threshold" else step

    patch.setitem(table.TABLE, (Checkpoint, SummaryRefused), final)  # type: ignore[arg-type]


def _placed_before_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Gates, "asked_about_summary", lambda self, state: False)


def _not_recovered(patch: pytest.MonkeyPatch) -> None:
    """What a hook that was asked before a death would have said is taken for a decline."""
    ask = Gates._ask_compaction

    async def once(self: Gates, caller: Any) -> Any:
        return Decline("asked before") if self._recovered else await ask(self, caller)

    patch.setattr(Gates, "_ask_compaction", once)


def _moves_unasked(patch: pytest.MonkeyPatch) -> None:
    init = Gates.__init__

    def unasked(self: Gates, *given: Any) -> None:
        init(self, *given)
        self._before_navigation = ()

    patch.setattr(Gates, "__init__", unasked)


def _told_of_again(patch: pytest.MonkeyPatch) -> None:
    needed, is_first = hooks._is_needed, hooks._is_first

    def forgetting(place: Any, state: Any) -> bool:
        return is_first(state) if place[0] == "before_run" else needed(place, state)

    patch.setattr(hooks, "_is_needed", forgetting)


def _program(*steps: Any, hooks: Any, prompts: Any = ((DONE,),), **policy: Any) -> Program:
    return Program(tuple(steps), prompts, hooks, Summing(**policy))


DECIDED_DEFECTS = above_stores(
    Defect("a hook's own summary is charged", _own_is_charged, _program(*TALK, Compact(keep=0), hooks=(OWN,))),
    Defect("a decline is ignored", _decline_ignored, _program(*TALK, Leave(to=1), hooks=(DECLINES,))),
    Defect(
        "a request that was too long is made again after a decline",
        _declined_overflow_goes_on,
        _program(Run(), Run(), Run(prompt=1), hooks=(DECLINES,), prompts=((DONE,), (LONG,))),
    ),
    Defect(
        "a decline before one request is one before all",
        _declined_for_the_run,
        _program(Run(), Run(), Run(prompt=1), hooks=(DECLINES,), prompts=((DONE,), (CALLS, DONE)), window=4, keep=1),
    ),
    Defect(
        "what is said while a hook thinks about a summary stands before it",
        _placed_before_it,
        _program(*TALK, AppendEntry(), hooks=(Hook("before_compaction", "change", hang=1),), window=4, keep=1),
    ),
    Defect(
        "a hook is asked once, whoever dies",
        _not_recovered,
        _program(*TALK, Compact(keep=0), Kill(), Resume(), hooks=(Hook("before_compaction", "change", hang=1),)),
    ),
    Defect(
        "a run is told of again behind what is said to it",
        _told_of_again,
        _program(
            *WRITTEN,
            Run(),
            Say(),
            hooks=(Hook("before_run", plain=True), DECLINES, Hook("before_request", hang=1)),
            window=4,
            keep=1,
        ),
    ),
    Defect(
        "a lane leaves its path unasked",
        _moves_unasked,
        _program(*TALK, Leave(to=1), hooks=(Hook("before_navigation", "block", plain=True), DECLINES)),
    ),
)
