"""The plain model of summaries in one commit: when there is one, what it is about, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.stateful import plain_kin as kin
from tests.stateful.plain_context import cut, kept, shown
from tests.stateful.plain_disk import Disk, Op, Row
from tests.stateful.plain_summed import Prep
from tests.stateful.programs import ATTEMPTS, MAX_RESTARTS, Reply
from tests.stateful.summing import UNIT, Summing, size_of

if TYPE_CHECKING:
    from tests.stateful.plain_decision import Decision

USAGE, UNKNOWN = (100, 10, 1_000), (None, None, None)
SHORTER_MAX = 6


def prepare(disk: Disk, op: Op, summing: Summing, reason: str) -> Prep | None:
    """What is to be summarized as things stand; None: nothing."""
    tip, apart = disk.tips[op.lane], op.summed.apart
    seen = shown(disk.entries, disk.path(tip), projects=summing.projects)
    if reason == "navigation":
        assert apart is not None
        messages = _left_behind(disk, tip, apart.base, projects=summing.projects)
        return Prep(reason, tip, seen.size, about=(None, messages, None))
    keep, unanswered = kept(summing, reason, seen.size, None if apart is None else apart.keep), disk.unanswered(op.lane)
    place = cut(seen.pieces, keep, len(unanswered))
    if place is None and reason == "overflow":
        first = op.inputs[0] if op.inputs else None
        own = unanswered[unanswered.index(first) :] if first in unanswered else unanswered
        place = cut(seen.pieces, 0, len(unanswered)) or cut(seen.pieces, 0, len(own))
    if place is None:
        return None
    before, behind = seen.pieces[: place.at], seen.pieces[place.at :]
    if reason == "threshold":
        least = max(1, keep // 4)
        if sum(piece.size for piece in before) < least or (seen.new is not None and seen.new < least):
            return None
    messages = [shape for piece in before for shape in piece.shapes]
    turn = None if place.turn is None else sum(len(piece.shapes) for piece in before[: place.turn])
    kept_from = behind[0].number if behind else None
    return Prep(reason, tip, seen.size, kept_from, place.split, (seen.earlier, messages, turn))


def is_due(disk: Disk, draft: Disk, op: Op, summing: Summing) -> bool:
    """Whether the next request would be too long, with what is placed before it."""
    if summing.threshold is None or op.summed.looked or op.summed.without:
        return False
    placed = [entry.body for entry in draft.entries[len(disk.entries) :]]
    coming = [
        size_of(("assistant", "", body[4])) if body[0] == "assistant" else UNIT
        for body in placed
        if body[0] in ("user", "assistant", "result")
    ]
    seen = shown(disk.entries, disk.path(disk.tips[op.lane]), projects=summing.projects)
    return seen.size + sum(coming) > summing.threshold


def leaves_something(disk: Disk, tip: int | None, base: int | None, *, projects: bool) -> bool:
    """Whether the model was shown something of the path behind ``base``, but for a compaction of what comes before."""
    entries = disk.entries
    _, left = _parted(disk, tip, base)
    said = [number for number in left if entries[number].body[0] != "compaction"]
    return any(
        entries[number].body[0] == "result" or shown(entries, [number], projects=projects).messages for number in said
    )


def _parted(disk: Disk, tip: int | None, base: int | None) -> tuple[list[int], list[int]]:
    """A path up to ``base``, and behind it."""
    path = disk.path(tip)
    at = 0 if base is None else path.index(base) + 1
    return path[:at], path[at:]


def _left_behind(disk: Disk, tip: int | None, base: int | None, *, projects: bool) -> list[tuple[Any, ...]]:
    """What the model was shown of the path behind ``base``: of a compaction there only if it is about that alone.

    Results at its beginning come with the answer that they are for."""
    entries = disk.entries
    path, left = _parted(disk, tip, base)
    first = next((number for number in left if entries[number].body[0] != "custom"), None)
    call = None if first is None else entries[first].call
    taken = [] if call is None else path[path.index(call[0]) :]
    for number in left:
        body = entries[number].body
        if body[0] == "compaction":
            about_it = body[2] is None or body[2] in left
            if not about_it or not shown(entries, taken, projects=projects).messages:
                continue
        taken.append(number)
    return shown(entries, taken, projects=projects).messages


@dataclass
class SummaryPart:
    """The steps of summaries of a decision."""

    decision: Decision

    @property
    def summing(self) -> Summing:
        return self.decision.model.summing

    def before_request(self, op: Op) -> bool | None:
        """A summary comes before the next request; whether to go on at once. None: there is none."""
        decision = self.decision
        if op.at != "checkpoint" or not is_due(decision.model.disk, decision.draft, op, self.summing):
            return None
        if decision.names:
            return False  # it is told from what is committed alone
        prep = prepare(decision.draft, op, self.summing, "threshold")
        return None if prep is None else self._begin(op, prep)

    def plan(self, op: Op) -> bool:
        """One step of an operation that is at a summary or a navigation; False: nothing can go on."""
        decision, running = self.decision, self.decision.running
        if op.at == "summarizing":
            if running.request is not None:
                return False
            self._interrupted(op)
        elif op.cancelled:
            self._end(op, "aborted", op.answer)
        elif running.gates.failed:
            self._end(op, "failed", op.answer, running.gates.failed)
        elif op.at == "navigating":
            if self._may_not_move_yet(op):
                return False
            self._move(op)
            decision.names.append("navigation")
            self._end(op, "completed", op.answer)
        elif decision._limit(op):
            self._end(op, "failed", op.answer, "limit_reached")
        elif op.at == "summary_wait":
            if decision.model.now < op.not_before:
                decision.sleeps = True
                return False
            assert kin.has_model(running.handle)
            op.attempt += 1
            self._intend(op)
        elif decision.names:
            return False
        else:
            reason = "overflow" if op.summed.overflow is not None else _reason(op)
            prep = prepare(decision.draft, op, self.summing, reason)
            if prep is None:
                decision.names.append("summary_refused")
                self._without(op, reason, "nothing_to_compact")
                return True
            return self._begin(op, prep)
        return True

    def _begin(self, op: Op, prep: Prep) -> bool:
        """Ask hooks, then the model."""
        decision, place = self.decision, ("before_compaction", op.turn, 0)
        op.summed.prep = prep
        decision.model.disk.ops[op.id].summed.prep = prep  # what hooks are told of
        if self._may_not_move_yet(op) or decision._gated(place):
            return False
        said = decision.running.gates.said.get(place)
        if said is not None and said.refusal:
            decision.names.append("summary_refused")
            if prep.reason == "threshold":
                op.summed.looked = True
            else:
                self._without(op, prep.reason, "compaction_declined")
        elif said is not None and said.value is not None and not said.failed:
            decision.names.append("summary")
            self._placed(op, said.value, None)
        else:
            op.attempt, op.retries, op.restarts, op.summed.shorter = 1, 0, 0, 0
            self._intend(op)
        return True

    def _may_not_move_yet(self, op: Op) -> bool:
        """Whether hooks have to be asked first about a navigation that goes elsewhere."""
        apart, tip = op.summed.apart, self.decision.draft.tips[op.lane]
        moves = apart is not None and apart.kind == "navigate" and apart.to != tip
        return moves and self.decision._gated(("before_navigation", 0, 0))

    def _intend(self, op: Op) -> None:
        op.at, op.asked = "summarizing", op.model
        self.decision.request = True
        self.decision.names.append("summary_intent")

    def answered(self, kind: str, reply: Reply) -> None:
        """The request for a summary has ended."""
        op, decision = self.decision.op, self.decision
        whole = kind in ("text", "length", "empty", "calls")
        row = self._row(op, USAGE if reply.usage and whole else UNKNOWN)
        if op.cancelled or kind not in ("text", "length"):
            decision.draft.ledger.append(row)
        number = decision.model.summed[op.id]
        if op.cancelled:
            decision.names.append("summary_failed")
            self._end(op, "aborted", op.answer)
        elif kind in ("text", "length"):
            decision.names.append("summary")
            self._placed(op, f"summary {number}", op.asked, row)
        else:
            codes = {"fail": "overloaded", "cut": "stream_cut", "long": "context_overflow"}
            code = codes.get(kind, "invalid_summary")
            retryable = whole or kind == "cut" or (kind == "fail" and reply.after_ms is not None)
            decision.names.append("summary_failed")
            if kind == "long" and op.summed.shorter < SHORTER_MAX:
                op.summed.shorter += 1
                self._wait(op, decision.model.now, code)
            elif retryable and op.retries + 1 < ATTEMPTS:
                op.retries += 1
                self._wait(op, decision.model.now + (reply.after_ms or 0 if kind == "fail" else 0), code)
            else:
                self._without(op, self._prep(op).reason, code)

    def _interrupted(self, op: Op) -> None:
        """An earlier pass left a request for a summary without its answer."""
        decision, limit = self.decision, self.decision._limit(op, more=1)
        decision.names.append("recovered_summary")
        decision.draft.ledger.append(self._row(op, UNKNOWN))
        reason = self._prep(op).reason
        op.restarts += 1
        if op.cancelled:
            self._end(op, "aborted", op.answer)
        elif op.restarts > MAX_RESTARTS:
            self._without(op, reason, "restarts_exhausted")
        elif decision.running.gates.failed:
            self._without(op, reason, "hook_failed")
        elif limit or not kin.has_model(decision.running.handle):
            self._without(op, reason, "limit_reached" if limit else "model_unavailable")
        elif op.restarts >= 2:
            self._wait(op, decision.model.now, "interrupted")
        else:
            op.attempt, op.asked = op.attempt + 1, op.model
            decision.request = True

    def _wait(self, op: Op, until: int, code: str) -> None:
        op.at, op.not_before, op.error = "summary_wait", until, code

    def _row(self, op: Op, usage: Any) -> Row:
        return Row("summary", usage, None, op.id, op.asked)

    def _placed(self, op: Op, text: str, model: int | None, row: Row | None = None) -> None:
        """There is a summary."""
        draft, prep, summed = self.decision.draft, self._prep(op), op.summed
        if prep.reason == "navigation":
            self._move(op)
            draft.repair(op.lane)
            number = draft.add(op.lane, ("branch_summary", text, prep.tip, model))
        else:
            size = prep.size // UNIT
            number = draft.add(op.lane, ("compaction", text, prep.kept_from, prep.split, size, model))
        if row is not None:
            draft.ledger.append(row._replace(entry=number))
        summed.prep = None
        if summed.apart is not None:
            summed.apart.summary, summed.apart.text = number, text
        if prep.reason == "navigation":
            self._end(op, "completed", op.answer)
            return
        op.at, summed.next, summed.looked = "checkpoint", "", True
        if prep.reason == "manual":
            summed.next, op.finish = "end", True

    def _without(self, op: Op, reason: str, code: str) -> None:
        """There is none."""
        summed = op.summed
        summed.prep = None
        if reason == "threshold":
            op.at, summed.looked, summed.without = "checkpoint", True, True
        elif reason == "overflow":
            self._end(op, "failed", summed.overflow, "context_overflow")
        else:
            self._end(op, "failed", op.answer, code)

    def _move(self, op: Op) -> None:
        draft, apart = self.decision.draft, op.summed.apart
        assert apart is not None
        left = draft.tips[op.lane]
        if apart.label is not None and left is not None:
            draft.labels[left] = apart.label
        draft.tips[op.lane] = apart.to

    def _end(self, op: Op, status: str, answer: int | None, code: str | None = None) -> None:
        self.decision._end(status, answer, code)

    def _prep(self, op: Op) -> Prep:
        prep = op.summed.prep
        assert prep is not None
        return prep


def _reason(op: Op) -> str:
    assert op.summed.apart is not None
    return "manual" if op.summed.apart.kind == "compact" else "navigation"
