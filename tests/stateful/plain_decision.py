"""The plain model of one commit of an operation: which steps it takes together, and what they change.

It is the state machine told anew: what there is to do at each state, one step after the other, until an effect, time or
the operation's end is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.stateful.plain_disk import CallState, Disk, Op, Row
from tests.stateful.plain_inbox import Item
from tests.stateful.programs import ATTEMPTS, MAX_REPLAYS, MAX_RESTARTS, POLICIES, Call, Reply

USAGE = (100, 10, 1_000)
UNKNOWN = (None, None, None)


class Around(Protocol):
    """What a decision looks at beside the disk: the time, and how many requests each operation has begun."""

    now: int
    asked: Counter[str]

    def new_id(self) -> str: ...


class Running(Protocol):
    """What a decision knows of its pass: its operation and tools, and what hangs in it."""

    op: str
    handle: int
    request: Reply | None
    live: list[int]

    @property
    def tools(self) -> tuple[str, ...]: ...


@dataclass
class Decision:
    """One commit of an operation in the making, on a copy of what is durable."""

    model: Around
    running: Running
    draft: Disk
    names: list[str] = field(default_factory=list)
    request: bool = False
    calls: list[int] = field(default_factory=list)
    sleeps: bool = False

    @property
    def op(self) -> Op:
        return self.draft.ops[self.running.op]

    def take(self, answered: Any, outcomes: list[Any]) -> None:
        """Take in what effects have reported."""
        if answered is not None:
            self._answer(*answered)
        if outcomes:
            self._settle(outcomes)

    def plan(self) -> None:
        """Take steps until one needs an effect, time, or the operation's end."""
        while self.running.op in self.draft.ops and not self.request and not self.calls:
            op = self.op
            if op.at == "tools":
                if not self._plan_calls(op):
                    return
            elif op.at == "generating":
                if self.running.request is not None:
                    return
                self._interrupted(op)
            elif op.cancelled:
                self._end("aborted", op.answer, op.code)
            elif op.at == "checkpoint" and (items := self._next_input(op)):
                self._place_input(op, items)
            elif op.finish:
                self._end("completed", op.answer, op.code)
            elif op.at == "retry_wait" and self.model.now < op.not_before:
                self.sleeps = True
                return
            else:
                self._intend(op)
                self.names.append("intent")

    def _intend(self, op: Op) -> None:
        if op.at == "checkpoint":
            op.turn, op.attempt, op.retries, op.restarts = op.turn + 1, 1, 0, 0
        else:
            op.attempt += 1
        op.at, op.asked, op.placed, self.request = "generating", op.model, False, True

    # What waits.

    def _next_input(self, op: Op) -> list[Item]:
        """Deferred writes at any boundary, then steering; where the run would end without any, follow-ups."""

        def at_once(items: list[Item], mode: str) -> list[Item]:
            return items if mode == "all" else [] if op.placed else items[:1]

        inbox = self.draft.inbox
        writes, steers = inbox.of(op.lane, "write"), inbox.of(op.lane, "steer")
        follow_ups = inbox.of(op.lane, "follow_up") if op.finish and not steers else []
        return [*writes, *at_once(steers, op.steering), *at_once(follow_ups, op.follow_ups)]

    def _place_input(self, op: Op, items: list[Item]) -> None:
        self.names.append("placement")
        for item in items:
            self.draft.inbox.place(item, self.draft, op.id)
        if any(item.kind != "write" for item in items):
            op.finish, op.code, op.placed = False, None, True

    # Answers.

    def _answer(self, kind: str, reply: Reply) -> None:
        self.names.append("settlement")
        op = self.op
        if op.cancelled and kind in ("fail", "cut"):
            kind = "aborted"
        usage = USAGE if reply.usage and kind in ("text", "calls", "length") else UNKNOWN
        if kind == "aborted":
            self._place(op, "half an answer", "aborted", "aborted", (), usage)
            self._end("aborted", op.answer)
        elif kind in ("fail", "cut"):
            code = "overloaded" if kind == "fail" else "stream_cut"
            number = self._place(op, "half an answer" if kind == "cut" else "", "error", code, (), usage)
            retryable = kind == "cut" or reply.after_ms is not None
            if retryable and op.retries + 1 < ATTEMPTS:
                op.at, op.retries, op.error = "retry_wait", op.retries + 1, code
                op.not_before = self.model.now + (reply.after_ms or 0)
            else:
                self._end("failed", number, code)
        else:
            tools = tuple(call.tool for call in reply.calls)
            stop = "length" if kind == "length" else "tool_calls" if tools else "stop"
            text = f"answer {self.model.asked[op.id]}"
            op.answer = self._place(op, text, stop, None, tools, usage)
            op.finish = not tools
            op.code = "length" if kind == "length" and not tools else None
            op.at, op.batch, op.cut = ("tools" if tools else "checkpoint"), reply.calls, kind == "length"
            op.calls = [CallState(tool) for tool in tools]

    def _interrupted(self, op: Op) -> None:
        """An earlier pass left a request without its answer."""
        self.names.append("recovered_response")
        stop = "aborted" if op.cancelled else "error"
        number = self._place(op, op.frames or "", stop, "interrupted", (), UNKNOWN)
        op.restarts += 1
        if op.cancelled:
            self._end("aborted", op.answer)
        elif op.restarts > MAX_RESTARTS:
            self._end("failed", number, "restarts_exhausted")
        elif op.restarts >= 2:
            op.at, op.not_before, op.error = "retry_wait", self.model.now, "interrupted"
        else:
            op.attempt, op.asked = op.attempt + 1, op.model
            self.request = True

    def _place(self, op: Op, text: str, stop: str, code: str | None, tools: tuple[str, ...], usage: Any) -> int:
        good = stop not in ("error", "aborted")
        answers = self.draft.unanswered(op.lane) if good else ()
        number = self.draft.add(op.lane, ("assistant", text, stop, code, tools, answers, op.asked))
        self.draft.ledger.append(Row("attempt", usage, number, op.id, op.asked))
        op.frames = None
        return number

    # Calls.

    def _plan_calls(self, op: Op) -> bool:
        """One step of a batch; False when nothing can go on."""
        settle, again, starts = self._sorted_calls(op)
        if settle:
            self._settle([(index, result_of(op.calls[index], why), False) for index, why in settle])
        elif again is not None:
            call = op.calls[again]
            call.policy, call.attempt, call.replays = POLICIES[call.tool], call.attempt + 1, call.replays + 1
            self.names.append("replay_intent")
            self.calls = [again]
        elif starts:
            for index in starts:
                call = op.calls[index]
                call.status, call.policy, call.attempt = "effect_pending", POLICIES[call.tool], 1
            self.names.append("tool_intents")
            self.calls = starts
        else:
            return False
        return True

    def _sorted_calls(self, op: Op) -> tuple[list[tuple[int, str]], int | None, list[int]]:
        """What to settle without running it, else which one to run again, else which to start together."""
        live = self.running.live
        planned = [i for i, call in enumerate(op.calls) if call.status == "planned"]
        lost = [i for i, call in enumerate(op.calls) if call.status == "effect_pending" and i not in live]
        if op.cancelled:
            return sorted([(i, "not started") for i in planned] + [(i, "interrupted") for i in lost]), None, []
        if op.cut:
            return [(i, "cut") for i in planned], None, []
        again = [i for i in lost if self._may_replay(op, op.calls[i])]
        if len(again) < len(lost):
            return [(i, "interrupted") for i in lost if i not in again], None, []
        if any(op.calls[i].replays for i in live):
            return [], None, []
        if again:
            return [], again[0], []
        return self._startable(op)

    def _startable(self, op: Op) -> tuple[list[tuple[int, str]], None, list[int]]:
        refused: list[tuple[int, str]] = []
        starts: list[int] = []
        for index, call in enumerate(op.calls):
            if call.status in ("outcome_ready", "placed"):
                continue
            barrier = call.tool == "alone"
            if call.status == "planned" and not self._here(op, call.tool):
                refused.append((index, "refused"))
            elif call.status == "planned" and not (barrier and (starts or self.running.live)):
                starts.append(index)
            if barrier and (index, "refused") not in refused:
                break
        return (refused, None, []) if refused else ([], None, starts)

    def _here(self, op: Op, tool: str) -> bool:
        return tool in op.tools and tool in self.running.tools

    def _may_replay(self, op: Op, call: CallState) -> bool:
        repeatable = {POLICIES.get(call.tool), call.policy} <= {"safe", "idempotent"}
        return repeatable and self._here(op, call.tool) and call.replays < MAX_REPLAYS

    def _settle(self, outcomes: list[Any]) -> None:
        """Calls have outcomes: place those that are next in order, and keep the others."""
        op = self.op
        for index, body, stop in outcomes:
            op.calls[index].status, op.calls[index].body, op.calls[index].stop = "outcome_ready", body, stop
        placed = False
        for index, call in enumerate(op.calls):
            if call.status == "outcome_ready" and call.body is not None and op.answer is not None:
                self.draft.add(op.lane, call.body, (op.answer, index))
                call.status, placed = "placed", True
            elif call.status != "placed":
                break
        self.names.append("outcome_placed" if placed else "outcome_staged")
        if all(call.status == "placed" for call in op.calls):
            op.at, op.code = "checkpoint", None
            op.finish = all(call.stop for call in op.calls)

    def _end(self, status: str, answer: int | None, code: str | None = None) -> None:
        op = self.op
        text = ""
        if status == "completed" and op.answer is not None:
            text = self.draft.entries[op.answer].body[1]
        self.names.append("terminal")
        lane = self.draft.lanes[op.lane]
        lane.current, lane.last = None, op.id
        del self.draft.ops[op.id]
        self.draft.results[op.id] = {
            "lane": op.lane,
            "prompt": op.prompt,
            "inputs": op.inputs,
            "status": status,
            "code": code,
            "answer": answer,
            "text": text,
            "turns": op.turn,
            "tips": (op.from_tip, self.draft.tips[op.lane]),
            "times": (op.started_at, self.model.now),
            "usage": self.draft.totals(op.id),
            "returned": tuple(item.seen() for item in op.returned),
            "next": self._open_next(op.lane),
        }

    def _open_next(self, lane: str) -> str | None:
        """What was submitted and not taken opens the next operation; what else waits is placed before it."""
        inbox = self.draft.inbox
        submitted = [item for item in inbox.of(lane) if item.submitted]
        if not submitted:
            return None
        id, from_tip = self.model.new_id(), self.draft.tips[lane]
        for item in inbox.of(lane):
            if not item.submitted:
                inbox.place(item, self.draft, id)
        inputs = [entry for item in submitted for entry in inbox.place(item, self.draft, id, "taken")]
        prompt = int(submitted[0].bodies[0][1].split()[1])
        self.draft.open(id, lane, prompt, tuple(inputs), from_tip, self.model.now, self.running.handle)
        return id


def result_of(call: CallState, why: str) -> tuple[Any, ...]:
    """A result that the call's tool did not give; behind the last progress, where it was begun."""
    begun = why in ("interrupted", "aborted") and call.progress is not None
    return ("result", call.tool, f"{why} after {call.progress}" if begun else why, True)


def group_of(calls: tuple[Call, ...], index: int) -> list[int]:
    """The calls that run together with this one."""
    if calls[index].tool == "alone":
        return [index]
    group: list[int] = []
    for other, call in enumerate(calls):
        if call.tool == "alone":
            if other > index:
                break
            group = []
        else:
            group.append(other)
    return group


def alone_in_group(calls: tuple[Call, ...], index: int) -> bool:
    """Whether nothing runs beside this call, so that what it keeps on its way has its place among the commits."""
    return len(group_of(calls, index)) == 1


def waits_for(calls: tuple[Call, ...], index: int) -> int | None:
    """The call whose outcome this one waits for before it ends; None: it ends at once, or hangs."""
    ending = [i for i in group_of(calls, index) if calls[i].tool != "ghost" and not calls[i].hang]
    ordered = sorted(ending, key=lambda i: (calls[i].rank, i))
    place = ordered.index(index) if index in ordered else 0
    return ordered[place - 1] if place else None
