"""The plain model of one commit of an operation: which steps it takes together, and what they change.

It is the state machine told anew: what there is to do at each state, one step after the other, until an effect, time or
the operation's end is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.stateful import plain_kin as kin
from tests.stateful.kin import KIN
from tests.stateful.people import EXPIRES_MS
from tests.stateful.plain_asked import Asked, Decided
from tests.stateful.plain_calls import arguments_of, plan_calls, result_of
from tests.stateful.plain_disk import CallState, Disk, Op, Row
from tests.stateful.plain_hooks import Gates, Place, is_first, request_place
from tests.stateful.plain_inbox import Item
from tests.stateful.plain_limits import limit_reached
from tests.stateful.plain_summaries import SummaryPart, prepare
from tests.stateful.programs import ATTEMPTS, MAX_RESTARTS, POLICIES, Prompts, Reply
from tests.stateful.summing import Summing

USAGE = (100, 10, 1_000)
UNKNOWN = (None, None, None)
NOTHING_SENT = (0, 0, 0)


class Around(Protocol):
    """What a decision looks at beside the disk: the time, and how many requests each operation has begun."""

    now: int
    asked: Counter[str]
    summed: Counter[str]
    prompts: Prompts
    disk: Disk
    summing: Summing

    def new_id(self) -> str: ...


class Running(Protocol):
    """What a decision knows of its pass: its operation and tools, and what hangs in it."""

    op: str
    handle: int
    request: Reply | None
    live: list[int]
    gates: Gates

    def time_ms(self, now: int) -> int: ...

    @property
    def tools(self) -> tuple[str, ...]: ...

    def said_about(self, op: Op) -> dict[int, bool | str]: ...


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
    asks: list[Place] = field(default_factory=list)
    """Where hooks are to be asked before anything goes on."""
    consult: set[int] = field(default_factory=set)
    """Calls whose predicates are asked as soon as this is committed."""
    awaits: bool = False
    driven: list[int] = field(default_factory=list)
    """Calls that are operations of their own, to drive from where they stand."""

    @property
    def op(self) -> Op:
        return self.draft.ops[self.running.op]

    def take(self, answered: Any, outcomes: list[Any]) -> None:
        """Take in what effects have reported."""
        if answered is not None and self.op.at == "summarizing":
            SummaryPart(self).answered(*answered[:2])
        elif answered is not None:
            self._answer(*answered)
        deferred = [index for index, body, _ in outcomes if body == "deferred"]
        for index in deferred:
            self.op.calls[index].status, self.op.calls[index].approval = "waiting_external", None
        self.names += ["deferred"] if deferred else []
        asked = {index: body[1] for index, body, _ in outcomes if body[0] == "asks"}
        if asked:
            self._ask(list(asked), asked)
        outcomes = [each for each in outcomes if each[1] != "deferred" and each[1][0] != "asks"]
        if outcomes:
            self._settle(outcomes)

    def plan(self) -> None:
        """Take steps until one needs an effect, time, or the operation's end."""
        while self.running.op in self.draft.ops and not self.request and not self.calls and not self.driven:
            op = self.op
            if op.at in ("summarizing", "summary_wait", "navigating") or op.summed.next == "summarize":
                if not SummaryPart(self).plan(op):
                    return
            elif op.at == "tools":
                if not self._plan_calls(op):
                    return
            elif op.at == "generating":
                at_once = op.restarts == 0 and not op.cancelled
                if self.running.request is not None or (at_once and self._gated(request_place(op))):
                    return
                self._interrupted(op)
            elif op.cancelled:
                self._end("aborted", op.answer, op.code)
            elif self.running.gates.failed:
                self._end("failed", op.answer, self.running.gates.failed)
            elif op.at == "checkpoint" and not self._thought_about() and (items := self._next_input(op)):
                self._place_input(op, items)
            elif op.finish:
                if op.summed.next != "end" and self._gated(("before_finish", op.turn, 0)):
                    return
                if not self._followed_up(op):
                    self._end("completed", op.answer, op.code)
            elif self._limit(op):
                self._end("failed", op.answer, "limit_reached")
            elif op.at == "retry_wait" and self.model.now < op.not_before:
                self.sleeps = True
                return
            elif not kin.has_model(self.running.handle):
                self._end("failed", op.answer, "model_unavailable")
            else:
                if is_first(op) and self._gated(("before_run", 1, 0)):
                    return
                if (going := SummaryPart(self).before_request(op)) is not None:
                    if not going:
                        return
                    continue
                if self._gated(request_place(op)):
                    return
                self._intend(op)
                self.names.append("intent")

    def _intend(self, op: Op) -> None:
        if op.at == "checkpoint":
            op.turn, op.attempt, op.retries, op.restarts = op.turn + 1, 1, 0, 0
        else:
            op.attempt += 1
        op.at, op.asked, op.placed, self.request = "generating", op.model, False, True

    def _limit(self, op: Op, *, more: int = 0) -> bool:
        return limit_reached(self.draft, op, self.running.time_ms(self.model.now), more=more)

    def _arguments(self, op: Op) -> tuple[Any, ...]:
        number, prompts = self.model.asked[op.id] - 1, len(self.model.prompts)
        arguments = [arguments_of(op.batch, index, number, prompts) for index in range(len(op.batch))]
        return tuple((call.tool, *each.values()) for call, each in zip(op.batch, arguments, strict=True))

    # Hooks.

    def _thought_about(self) -> bool:
        """Whether hooks are asked about a summary, or have spoken: what is said meanwhile stands behind it."""
        place, gates = ("before_compaction", self.op.turn, 0), self.running.gates
        return not self.names and (place in gates.hanging or place in gates.said)

    def _gated(self, *places: Place) -> bool:
        """Whether hooks have to speak first; they are asked once there is nothing to commit."""
        gates = self.running.gates
        silent = gates.silent(places)
        if not self.names:
            self.asks += [place for place in silent if place not in gates.hanging]
        return bool(silent)

    def _followed_up(self, op: Op) -> bool:
        """Whether hooks have more to say, which is placed."""
        more = self.running.gates.made(("before_finish", op.turn, 0), ())
        for text in more:
            self.draft.add(op.lane, ("user", text))
        if more:
            self.names.append("follow_up")
            op.finish, op.code, op.placed, op.pushed = False, None, False, op.pushed + len(more)
        return bool(more)

    # What waits.

    def _next_input(self, op: Op) -> list[Item]:
        """Deferred writes at any boundary, then steering; where the run would end without any, follow-ups."""

        def at_once(items: list[Item], mode: str) -> list[Item]:
            return items if mode == "all" else [] if op.placed else items[:1]

        inbox = self.draft.inbox
        if op.summed.next == "end":
            return inbox.of(op.lane, "write")
        writes, steers = inbox.of(op.lane, "write"), inbox.of(op.lane, "steer")
        if not kin.has_model(self.running.handle) or self._limit(op):
            return writes  # what cannot be answered waits on
        follow_ups = inbox.of(op.lane, "follow_up") if op.finish and not steers else []
        return [*writes, *at_once(steers, op.steering), *at_once(follow_ups, op.follow_ups)]

    def _place_input(self, op: Op, items: list[Item]) -> None:
        self.names.append("placement")
        for item in items:
            self.draft.inbox.place(item, self.draft, op.id)
        if any(item.kind != "write" for item in items):
            op.finish, op.code, op.placed = False, None, True
            op.summed.looked = False

    # Answers.

    def _answer(self, kind: str, reply: Reply, text: str | None = None) -> None:
        self.names.append("settlement")
        op = self.op
        if op.cancelled and kind in ("fail", "cut", "long"):
            kind = "aborted"
        usage = USAGE if reply.usage and kind in ("text", "calls", "length") else UNKNOWN
        tools = tuple(call.tool for call in reply.calls)
        text = text or f"answer {self.model.asked[op.id]}"
        if kind == "unsent":
            self._place(op, "", "aborted", "aborted", (), NOTHING_SENT)
            self._end("aborted", op.answer)
        elif kind == "stopped":
            number = self._place(op, "", "error", "hook_failed", (), NOTHING_SENT)
            self._end("failed", number, "hook_failed")
        elif kind == "rejected":
            usage = USAGE if reply.usage else UNKNOWN
            number = self._place(op, text, "error", "hook_failed", tools, usage)
            self._end("failed", number, "hook_failed")
        elif kind == "aborted":
            self._place(op, "half an answer", "aborted", "aborted", (), usage)
            self._end("aborted", op.answer)
        elif kind in ("fail", "cut", "long"):
            code = {"fail": "overloaded", "cut": "stream_cut", "long": "context_overflow"}[kind]
            recovers = kind == "long" and self._can_recover(op)
            number = self._place(op, "half an answer" if kind == "cut" else "", "error", code, (), usage)
            retryable = kind == "cut" or reply.after_ms is not None
            if recovers:
                op.at, op.turn, op.finish, op.code = "checkpoint", op.turn - 1, False, None
                op.summed.next, op.summed.overflow, op.summed.looked = "summarize", number, False
            elif retryable and op.retries + 1 < ATTEMPTS:
                op.at, op.retries, op.error = "retry_wait", op.retries + 1, code
                op.not_before = self.model.now + (reply.after_ms or 0)
            else:
                self._end("failed", number, code)
        else:
            stop = "length" if kind == "length" else "tool_calls" if tools else "stop"
            op.answer = self._place(op, text, stop, None, tools, usage)
            op.finish = not tools
            op.summed.overflow, op.summed.looked = None, False
            op.code = "length" if kind == "length" and not tools else None
            op.at, op.batch, op.cut = ("tools" if tools else "checkpoint"), reply.calls, kind == "length"
            op.calls = [CallState(tool) for tool in tools]
            if tools and not op.cut:
                op.asked_for.append(self._arguments(op))
                self.draft.batches[op.answer] = op.asked_for[-1]

    def _can_recover(self, op: Op) -> bool:
        """Whether something can be summarized since a request was too long."""
        summing, disk = self.model.summing, self.model.disk
        return op.summed.overflow is None and not summing.none and bool(prepare(disk, op, summing, "overflow"))

    def _interrupted(self, op: Op) -> None:
        """An earlier pass left a request without its answer."""
        self.names.append("recovered_response")
        stop, limit = "aborted" if op.cancelled else "error", self._limit(op, more=1)
        number = self._place(op, op.frames or "", stop, "interrupted", op.framed, UNKNOWN)
        op.restarts += 1
        if op.cancelled:
            self._end("aborted", op.answer)
        elif op.restarts > MAX_RESTARTS:
            self._end("failed", number, "restarts_exhausted")
        elif self.running.gates.failed:
            self._end("failed", number, "hook_failed")
        elif limit or not kin.has_model(self.running.handle):
            self._end("failed", number, "limit_reached" if limit else "model_unavailable")
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
        op.frames, op.framed = None, ()
        return number

    # Calls.

    def _plan_calls(self, op: Op) -> bool:
        """One step of a batch; False when nothing can go on."""
        ready = [i for i, call in enumerate(op.calls) if call.status == "outcome_ready"]
        if not op.cancelled:
            self._gated(*(("after_tool", op.turn, i) for i in ready))
        if self._place_ready(op):
            return True
        plan = plan_calls(op, self.running, self.consult, self.model.now)
        left = kin.left_to_drive(self.draft, op, self.running.live, self.model.now)
        if left and not (plan.settle and op.cancelled):
            self.driven = left
        elif plan.settle:
            self._settle([(index, self._result(index, why), False) for index, why in plan.settle])
        elif plan.consult:
            self.consult.update(plan.consult)
        elif plan.ask:
            self._ask(plan.ask)
        elif plan.again is not None:
            call = op.calls[plan.again]
            call.policy, call.attempt, call.replays = POLICIES[call.tool], call.attempt + 1, call.replays + 1
            call.approval, call.permit, call.resumed = call.approval if call.permit else None, False, False
            self.names.append("replay_intent")
            self.calls = [plan.again]
        elif self._gated(*(("before_tool", op.turn, i) for i in plan.starts)):
            return False
        elif plan.starts and op.calls[plan.starts[0]].tool in KIN:
            prompt = op.batch[plan.starts[0]].prompt % len(self.model.prompts)
            kin.open_child(self.draft, op, plan.starts[0], prompt, self.running.handle, self.model.now)
            self.names.append("child_started")
            self.driven = list(plan.starts)
        elif plan.starts:
            for index in plan.starts:
                call = op.calls[index]
                call.resumed = call.status == "answered"
                call.status, call.policy, call.attempt = "effect_pending", POLICIES[call.tool], call.attempt + 1
                call.mark = self.running.gates.made(("before_tool", op.turn, index), call.mark)
            self.names.append("tool_intents")
            self.calls = list(plan.starts)
        else:
            self.awaits = plan.awaits
            return False
        return True

    def _result(self, index: int, why: str) -> tuple[Any, ...]:
        call = self.op.calls[index]
        if why == "expired":
            self.decide(index, allow=False, expired=True)
            why = "interrupted" if call.attempt else why
        return result_of(call, why)

    def _ask(self, indices: Sequence[int], questions: Mapping[int, str] | None = None) -> None:
        """Put it to people whether these calls may run, or what they ask."""
        op, draft = self.op, self.draft
        self.names.append("approval_asked" if questions is None else "question_asked")
        for index in indices:
            call = op.calls[index]
            lasts = EXPIRES_MS.get(call.tool)
            op.asking[index] = Asked(
                number=draft.asked,
                op=op.id,
                lane=op.lane,
                call=(op.answer or 0, index),
                tool=call.tool,
                kind="question" if questions else "replay" if call.attempt else "call",
                asked_at=self.model.now,
                expires_at=None if lasts is None else self.model.now + lasts,
                end=op.changed.get(index, op.batch[index].end),
                progress=call.progress,
                name=questions[index] if questions else "",
            )
            call.status, call.approval = "waiting_question" if questions else "waiting_approval", draft.asked
            draft.asked += 1

    def decide(self, index: int, **what: Any) -> Decided:
        """Somebody has answered, or nobody in time."""
        self.names.append("decision")
        return self.close(index, **what)

    def close(self, index: int, **what: Any) -> Decided:
        """What was asked about a call is answered."""
        asked = self.op.asking.pop(index)
        decided = Decided(asked.number, asked.call, asked.tool, asked.kind, at=self.model.now, **what)
        self.op.decisions = (*self.op.decisions, decided)
        return decided

    def _settle(self, outcomes: list[Any]) -> None:
        """Calls have outcomes: place those that are next in order, and keep the others."""
        op = self.op
        for index, body, stop in outcomes:
            op.calls[index].status, op.calls[index].body, op.calls[index].stop = "outcome_ready", body, stop
        placed, held = False, self.running.gates.held(op)
        for index, call in enumerate(op.calls):
            if call.status == "outcome_ready" and index not in held and call.body is not None and op.answer is not None:
                self.draft.add(op.lane, call.body, (op.answer, index))
                call.status, placed = "placed", True
            elif call.status != "placed":
                break
        self.names.append("outcome_placed" if placed else "outcome_staged")
        if all(call.status == "placed" for call in op.calls):
            op.at, op.code = "checkpoint", None
            op.changed.clear()
            op.finish = all(call.stop for call in op.calls)

    def _place_ready(self, op: Op) -> bool:
        """Place outcomes that were held, as hooks have changed them."""
        held = self.running.gates.held(op)
        waiting = [index for index, call in enumerate(op.calls) if call.status != "placed"]
        if not waiting or waiting[0] in held or op.calls[waiting[0]].status != "outcome_ready":
            return False
        for index in waiting:
            call = op.calls[index]
            if index in held or call.status != "outcome_ready" or call.body is None:
                break
            text = self.running.gates.made(("after_tool", op.turn, index), call.body[2])
            call.body = (*call.body[:2], text, call.body[3])
        self._settle([])
        return True

    def _end(self, status: str, answer: int | None, code: str | None = None) -> None:
        op = self.op
        text, apart = "", op.summed.apart
        too_long = op.summed.overflow is not None and op.at in ("checkpoint", "summarizing", "summary_wait")
        if status == "completed" and op.answer is not None:
            text = self.draft.entries[op.answer].body[1]
        if status == "completed" and apart is not None:
            text = apart.text
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
            "turns": op.turn + too_long,
            "kind": "prompt" if apart is None else apart.kind,
            "summary": None if apart is None else apart.summary,
            "tips": (op.from_tip, self.draft.tips[op.lane]),
            "times": (op.started_at, self.model.now),
            "usage": self.draft.totals(op.id),
            "decisions": tuple(sorted(op.decisions)),
            "returned": tuple(item.seen() for item in op.returned),
            "key_operation": op.key_operation,
            "retry_of": self.draft.retries[op.id][1] if op.id in self.draft.retries else None,
            "next": self._open_next(op),
        }

    def _open_next(self, ended: Op) -> str | None:
        """What was submitted and not taken opens the next operation; what else waits is placed before it."""
        inbox, lane = self.draft.inbox, ended.lane
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
        if not kin.has_model(self.running.handle):  # one that is not there says nothing of what comes next
            kin.configure_as(self.draft.ops[id], ended)
        return id
