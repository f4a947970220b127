"""The plain model of the calls of one answer: which of them run together, and what is to be done about them next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from tests.stateful.delivery import DEFERRING_POLICIES
from tests.stateful.kin import KIN
from tests.stateful.people import needs_a_yes
from tests.stateful.plain_disk import CallState, Op
from tests.stateful.plain_hooks import Gates
from tests.stateful.plain_limits import is_repeated
from tests.stateful.programs import BARRIERS, MAX_REPLAYS, POLICIES, Call
from tests.stateful.questions import QUESTIONS

PEOPLE = {"asked", "maybe", "locked", *DEFERRING_POLICIES, *QUESTIONS}
"""Tools whose calls may have to wait for somebody: they end as soon as they have started."""


class Batch(Protocol):
    """What the plan of the calls knows of the pass."""

    live: list[int]
    gates: Gates

    @property
    def tools(self) -> tuple[str, ...]: ...

    def said_about(self, op: Op) -> dict[int, bool | str]:
        """What predicates have said of the calls."""
        ...


class CallPlan(NamedTuple):
    """The one thing to do: calls to settle without running them, to ask people or predicates about, to run again, or to
    start together; else whether somebody outside is waited for."""

    settle: Sequence[tuple[int, str]] = ()
    ask: Sequence[int] = ()
    again: int | None = None
    consult: Sequence[int] = ()
    starts: Sequence[int] = ()
    awaits: bool = False


def plan_calls(op: Op, running: Batch, consulted: Collection[int], now: int) -> CallPlan:
    """What is next; the predicates of ``consulted`` are being asked."""
    planned = [i for i, call in enumerate(op.calls) if call.status == "planned"]
    if op.cancelled:
        return CallPlan(_cancelled(op, running.live))
    if op.cut:
        return CallPlan([(i, "cut") for i in planned])
    expired = [i for i, asked in sorted(op.asking.items()) if asked.is_over(now)]
    if expired:
        return CallPlan([(i, "expired") for i in expired])
    return _recovery(op, running) or _starts(op, running, consulted)


def _cancelled(op: Op, live: list[int]) -> list[tuple[int, str]]:
    settle = []
    for index, call in enumerate(op.calls):
        if call.status in ("planned", "approved") or (call.status == "waiting_approval" and not call.attempt):
            settle.append((index, "not started"))
        elif call.status == "waiting_approval" or (call.status == "effect_pending" and index not in live):
            settle.append((index, "interrupted"))
        elif call.status in ("waiting_external", "waiting_question", "answered"):
            settle.append((index, "aborted"))
    return settle


def _recovery(op: Op, running: Batch) -> CallPlan | None:
    """Calls that an earlier pass began: results for those that must not run again, the others one by one."""
    settle: list[tuple[int, str]] = []
    again: list[int] = []
    ask: list[int] = []
    for index, call in enumerate(op.calls):
        if call.status != "effect_pending" or index in running.live:
            continue
        policies = {POLICIES[call.tool], call.policy}
        if problem(op, running, index) or "never" in policies or call.replays >= MAX_REPLAYS:
            settle.append((index, "interrupted"))
        elif call.permit or policies <= {"safe", "idempotent"}:
            again.append(index)
        else:
            ask.append(index)
    if settle or ask:
        return CallPlan(settle) if settle else CallPlan(ask=ask)
    if any(op.calls[i].replays and not op.calls[i].resumed for i in running.live):
        return CallPlan()
    if again:
        return CallPlan() if running.live else CallPlan(again=again[0])
    return None


def _starts(op: Op, running: Batch, consulted: Collection[int]) -> CallPlan:
    refused: list[tuple[int, str]] = []
    starts: list[int] = []
    consult: list[int] = []
    ask: list[int] = []
    waits = consulting = False
    said = running.said_about(op)
    for index, call in enumerate(op.calls):
        barrier = call.tool in BARRIERS
        if call.status in ("outcome_ready", "placed"):
            continue
        if call.status not in ("planned", "approved", "answered"):
            waits = waits or call.status.startswith("waiting")
            if barrier:
                break
            continue
        why = running.gates.refusal(op, index) or problem(op, running, index)
        if call.status == "answered" and why:
            why = "stranded"
        open_one = call.status == "planned" and call.tool == "maybe" and why is None
        if why or (open_one and said.get(index) == "raised"):
            refused.append((index, why or "raised"))
            continue
        if barrier and (running.live or starts or waits):
            break
        if open_one and index not in said:
            waits, consulting = True, consulting or index in consulted
            consult += [index] if index not in consulted else []
        elif call.status == "planned" and (said.get(index) if open_one else call.tool in ("asked", "locked")):
            waits = True
            ask.append(index)
        else:
            starts.append(index)
        if barrier:
            break
    if refused or consult:
        return CallPlan(refused) if refused else CallPlan(consult=consult)
    if ask and not consulting:
        return CallPlan(ask=ask)
    return CallPlan(starts=starts, awaits=not starts and waits and not consulting and not running.live)


def problem(op: Op, running: Batch, index: int) -> str | None:
    """Why a call cannot run here."""
    tool = op.calls[index].tool
    if is_repeated(op, index):
        return "repeated"
    if tool not in op.tools or tool not in running.tools:
        return "refused"
    return "unfit" if op.changed.get(index) == "bad" else None


def reasons_of(op: Op) -> tuple[Any, ...]:
    """What the operation waits for, in the order of its calls."""
    reasons: list[tuple[Any, ...]] = []
    for index, call in enumerate(op.calls):
        if call.status == "waiting_external":
            reasons.append(("external", (op.answer, index), call.tool))
        elif index in op.asking:
            reasons.append(op.asking[index].reason())
    return tuple(reasons)


def predicate_of(calls: tuple[Call, ...], index: int) -> bool | str:
    """What the predicate of a call's tool says."""
    try:
        return needs_a_yes(index, calls[index].end)
    except ValueError:
        return "raised"


def result_of(call: CallState, why: str) -> tuple[Any, ...]:
    """A result that the call's tool did not give; behind the last progress, where it was begun."""
    begun = why in ("interrupted", "aborted", "stranded") and call.progress is not None
    return ("result", call.tool, f"{why} after {call.progress}" if begun else why, True)


def group_of(calls: tuple[Call, ...], index: int) -> list[int]:
    """The calls that run together with this one."""
    if calls[index].tool in BARRIERS:
        return [index]
    group: list[int] = []
    for other, call in enumerate(calls):
        if call.tool in BARRIERS:
            if other > index:
                break
            group = []
        else:
            group.append(other)
    return group


def alone_in_group(calls: tuple[Call, ...], index: int) -> bool:
    """Whether nothing runs beside this call, so that what it keeps on its way has its place among the commits."""
    return len(group_of(calls, index)) == 1


def arguments_of(calls: tuple[Call, ...], index: int, number: int, prompts: int) -> dict[str, Any]:
    """With what a call of the answer to the ``number``-th request is made. No barrier but an agent is called twice."""
    call = calls[index]
    if call.tool in KIN:
        return {"prompt": f"prompt {call.prompt % prompts}"}
    return {
        "index": index,
        "end": call.end,
        "hang": call.hang,
        "behind": waits_for(calls, index),
        "keeps": alone_in_group(calls, index),
        **({"turn": number} if call.tool in BARRIERS else {}),
    }


def waits_for(calls: tuple[Call, ...], index: int) -> int | None:
    """The call whose outcome this one waits for before it ends; None: it ends at once, or hangs."""
    others = {"ghost", *PEOPLE}
    ending = [i for i in group_of(calls, index) if calls[i].tool not in others and not calls[i].hang]
    ordered = sorted(ending, key=lambda i: (calls[i].rank, i))
    place = ordered.index(index) if index in ordered else 0
    return ordered[place - 1] if place else None
