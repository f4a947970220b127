"""The plain model of what operations do: a drive is a loop that decides, commits, and lets effects go on.

Effects are what the program says. A request ends at once or hangs; calls that run together end one after another, each
once the outcome of the one before is durable, so that every history is the only one there is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.stateful import plain_kin as kin
from tests.stateful.delivery import DEFERRING_POLICIES
from tests.stateful.kin import called_handle, spoken
from tests.stateful.people import CHANGED
from tests.stateful.plain import Faulted, Refused
from tests.stateful.plain_calls import alone_in_group, predicate_of, reasons_of, waits_for
from tests.stateful.plain_decision import Decision
from tests.stateful.plain_disk import Disk, Op
from tests.stateful.plain_hooks import Gates, PlainHooked, request_place
from tests.stateful.plain_limits import asleep_until, call_key
from tests.stateful.programs import FRAMES_EVERY_MS, TOOLS_OF_HANDLE, Reply
from tests.stateful.questions import QUESTIONS
from tests.stateful.summing import Summing, written


@dataclass
class Observer:
    label: str
    lane: str
    wait: bool
    answers: bool = True


@dataclass
class Pass:
    """One pass: what runs in it, and who watches."""

    lane: str
    op: str
    handle: int
    observers: list[Observer] = field(default_factory=list)
    request: Reply | None = None
    """The request that hangs."""
    unsaved: tuple[str, int] | None = None
    """What it has shown and not saved, and when that is due."""
    live: list[int] = field(default_factory=list)
    """The calls that run."""
    sleeping: bool = False
    gates: Gates = field(default_factory=Gates)
    within: str | None = None
    """What becomes of the request under an abort, if it is hooks that hang: it was not sent, or its answer is whole."""
    slept_at: int = 0
    began_at: int = 0
    spent_ms: int = 0
    """What earlier passes have committed of the operation's time."""
    caller: tuple[str, int] | None = None
    """The lane of the pass that drives it, and the call that it is there, if it is one."""
    said: dict[int, bool | str] = field(default_factory=dict)
    """What predicates have said."""
    said_of: Any = None

    def time_ms(self, now: int) -> int:
        """What the operation has spent of its time."""
        return self.spent_ms + now - self.began_at

    @property
    def tools(self) -> tuple[str, ...]:
        return TOOLS_OF_HANDLE[self.handle]

    def said_about(self, op: Op) -> dict[int, bool | str]:
        """Of another batch, and of one with other arguments, they are asked anew."""
        if self.said_of != (op.answer, op.changed):
            self.said, self.said_of = {}, (op.answer, dict(op.changed))
        return self.said


@dataclass
class PlainRuns(PlainHooked):
    """The plain model with its operations."""

    passes: dict[str, Pass] = field(default_factory=dict)
    finished: list[tuple[str, Any]] = field(default_factory=list)
    """Drives that ended since the last look, and how."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests that started, by operation. Deaths do not forget them, as little as the next three."""
    summed: Counter[str] = field(default_factory=Counter)
    started: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    requests: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[tuple[str, str, int]] = field(default_factory=list)
    autos: int = 0
    summing: Summing = field(default_factory=Summing)
    summaries: tuple[Reply, ...] = ()

    # The verbs of a lane.

    def accept(self, lane: str, op: str, prompt: int, handle: int) -> tuple[Any, ...]:
        disk = self.disk
        if lane not in disk.lanes:
            raise Refused("no lane")
        if op in disk.retries and (op in disk.results or op in disk.ops):
            raise Refused("RequestConflict")
        if op in disk.results:
            record = disk.results[op]
            return self._same(record["lane"], record["prompt"], record["inputs"], lane, prompt)
        if op in disk.ops:
            known = disk.ops[op]
            return self._same(known.lane, known.prompt, known.inputs, lane, prompt)
        if disk.lanes[lane].current is not None:
            raise Refused("LaneBusy")
        after = disk.copy()
        inputs = self.opened(after, lane, op, prompt, handle)
        self.commit("accept", after)
        return ("admitted", inputs)

    def opened(self, after: Disk, lane: str, op: str, prompt: int, handle: int) -> tuple[int, ...]:
        """Open an operation with a prompt, behind all that waits; the entries of the prompt."""
        from_tip = after.tips[lane]
        after.repair(lane)
        for item in after.inbox.of(lane):
            after.inbox.place(item, after, op)
        inputs = (after.add(lane, ("user", f"prompt {prompt}")),)
        after.open(op, lane, prompt, inputs, from_tip, self.now, handle)
        return inputs

    def new_id(self) -> str:
        """An id that nobody has given."""
        self.autos += 1
        return f"auto-{self.autos}"

    def _same(self, its_lane: str, its: int, inputs: tuple[int, ...], lane: str, prompt: int) -> tuple[Any, ...]:
        if (its_lane, its) != (lane, prompt):
            raise Refused("RequestConflict")
        return ("admitted", inputs)

    def settled(self, lane: str, op: str) -> dict[str, Any]:
        """The record of an operation that is not the lane's open one."""
        disk = self.disk
        if op in disk.results:
            if disk.results[op]["lane"] != lane:
                raise Refused("OperationMismatch")
            return disk.results[op]
        raise Refused("OperationMismatch" if op in disk.ops or disk.lanes[lane].current else "UnknownOperation")

    def drive(self, observer: Observer, op: str | None, handle: int) -> None:
        """Join the lane's pass, or begin one."""
        current = self.disk.lanes[observer.lane].current
        if op is not None and op != current:
            self.finished.append((observer.label, ("settled", self.settled(observer.lane, op))))
            return
        if current is None:
            raise Refused("NoActiveOperation")
        if self.disk.ops[current].parent is not None:
            raise Refused("LaneBusy")
        running = self.passes.get(observer.lane)
        if running is None:
            running = self.passes[observer.lane] = self._pass(observer.lane, current, handle)
            running.gates = self.gates_of(current, handle)
        running.observers.append(observer)
        self.advance(running)

    def _pass(self, lane: str, op: str, handle: int, caller: tuple[str, int] | None = None) -> Pass:
        return Pass(lane, op, handle, caller=caller, began_at=self.now, spent_ms=self.disk.ops[op].time_ms)

    def result(self, lane: str, op: str) -> Any:
        """A settled record is the session's: any lane tells it. What is open is its lane's."""
        if op == self.disk.lanes[lane].current:
            return None
        if op not in self.disk.results:
            raise Refused("OperationMismatch" if op in self.disk.ops else "UnknownOperation")
        return self.disk.results[op]

    def configure(
        self,
        lane: str,
        handle: int,
        model: int | None,
        tools: tuple[str, ...] | None,
        settings: dict[str, int] | None,
    ) -> None:
        if tools is not None and not set(tools) <= set(TOOLS_OF_HANDLE[handle]):
            raise Refused("UnknownTool")
        after = self.disk.copy()
        config = after.lanes[lane]
        config.model = config.model if model is None else model
        config.tools = config.tools if tools is None else tools
        config.settings = config.settings if settings is None else settings
        if config.current is not None:
            op = after.ops[config.current]
            op.model = config.model or 0
            op.tools = TOOLS_OF_HANDLE[handle] if config.tools is None else config.tools
            op.settings = config.settings or {}
        self.commit("configure", after)
        self.poke(lane)

    def poke(self, lane: str) -> None:
        if lane in self.passes:
            self.advance(self.passes[lane])

    def leave(self, lane: str) -> bool:
        """The oldest observer goes; nobody left to sit out a wait ends the pass."""
        running = self.passes.get(lane)
        if running is None or not running.observers:
            return False
        self.finished.append((running.observers.pop(0).label, ("cancelled",)))
        self.advance(running)
        return True

    def pass_time(self, ms: int) -> int:
        """Move on by ``ms`` at most, to the first that is due and lets it act; by how much it was."""
        times = [(self.due(running), lane) for lane, running in self.passes.items()]
        due = sorted((at, lane) for at, lane in times if at is not None and at <= self.now + ms)
        if not due:
            self.now += ms
            return ms
        if len(due) > 1 and due[0][0] == due[1][0]:
            return 0  # two at a time have no order
        moved, self.now = due[0][0] - self.now, due[0][0]
        running = self.passes[due[0][1]]
        if running.unsaved is None:
            self.advance(running)
        else:
            try:
                self.save_frames(running)
            except Faulted:
                self.fault()
        return moved

    def due(self, running: Pass) -> int | None:
        """When the pass goes on by itself: what was shown is saved, a wait is over, or nobody has answered in time."""
        op = self.disk.ops[running.op]
        if running.unsaved is not None:
            return running.unsaved[1]
        expiries = [asked.expires_at for asked in op.asking.values() if asked.expires_at is not None]
        return self.wakes_at(running) if running.sleeping else min(expiries, default=None)

    def wakes_at(self, running: Pass) -> int:
        """When a pass that sleeps goes on."""
        op, at = self.disk.ops[running.op], running.slept_at
        wake = kin.wake_of(self.disk, op, at)
        assert wake is not None
        return asleep_until(op, wake, at, running.time_ms(at)) if op.at in ("retry_wait", "summary_wait") else wake

    @property
    def several(self) -> bool:
        """Whether more than one pass runs that does not wait for another."""
        return len(self.passes) - len({run.caller for run in self.passes.values()} - {None}) > 1

    def save_frames(self, running: Pass) -> None:
        if running.unsaved is not None:
            after = self.disk.copy()
            after.ops[running.op].frames = running.unsaved[0]
            self.commit("frames", after)
            running.unsaved = None

    def stop_all(self, ending: str | None, *, flush: bool) -> None:
        """Every pass ends as in a controlled crash; with ``flush`` what was shown is saved before."""
        passes, self.passes = self.passes, {}
        if flush:
            for running in passes.values():
                if running.request is not None:
                    self.reach(self.end_of_request(running))
                calls = self.disk.ops[running.op].calls
                for _ in [index for index in running.live if calls[index].status == "effect_pending"]:
                    self.reach("effect.tool.end")
                self.save_frames(running)
        if ending is not None:
            self.finished += [(each.label, ("refused", ending)) for run in passes.values() for each in run.observers]

    # The pass.

    def fault(self) -> None:
        """A write has failed: every pass ends, and whoever watches is told."""
        self.phase = "faulted"
        self.stop_all("SessionFaulted", flush=False)

    def advance(self, running: Pass, answered: Any = None, outcomes: list[Any] | None = None) -> None:
        """Go on until the operation has settled, sleeps, waits for what hangs, or a write fails."""
        try:
            self._advance(running, answered, outcomes)
        except Faulted:
            self.fault()

    def _advance(self, running: Pass, answered: Any, outcomes: list[Any] | None) -> None:
        outcomes = list(outcomes or ())
        while True:
            draft = self.disk.copy()
            decision = Decision(self, running, draft)
            decision.take(answered, outcomes)
            decision.plan()
            if decision.names:
                if "max_time_ms" in getattr(draft.ops.get(running.op), "limits", ()):
                    draft.ops[running.op].time_ms = running.time_ms(self.now)
                self.commit("+".join(dict.fromkeys(decision.names)), draft)
                if any(name in decision.names for name in ("settlement", "recovered_response")):
                    running.unsaved = None
                running.gates.forget(self.disk.ops.get(running.op))
            running.sleeping = False
            op = self.disk.ops.get(running.op)
            if op is None:
                del self.passes[running.lane]
                record = self.disk.results[running.op]
                self.finished += [(each.label, ("settled", record)) for each in running.observers]
                if running.caller is not None:
                    self._called(running.caller, record)
                return
            answered, outcomes = None, []
            if decision.request:
                answered = self._request(running, op) if op.at == "generating" else self._summarize(running, op)
            live = list(running.live)
            for index in decision.calls:
                outcomes += self._start(running, op.id, index)
            outcomes += self._next_in_order(running, self.disk.ops[op.id], live)
            for index in sorted(decision.consult):
                running.said_about(op)[index] = predicate_of(op.batch, index)
            assert not (decision.asks and decision.names), "hooks are asked beside a commit, in no order"
            spoken = [place for place in decision.asks if self.ask_at(running, place)]
            if decision.names or decision.consult or answered is not None or outcomes or spoken:
                continue
            if decision.sleeps:
                self._sleep(running, ("waiting", op.not_before, op.attempt + 1, op.error), for_retry=True)
            elif decision.driven:
                self._drive_child(running, op, decision.driven[0])
            elif decision.awaits and any(kin.children_of(self.disk, op)):
                self._sleep(running, kin.waiting_of(self.disk, op), for_retry=True)
            elif decision.awaits:
                self._sleep(running, ("waiting", self.due(running), reasons_of(op)), for_retry=False)
            return

    def _drive_child(self, running: Pass, op: Op, index: int) -> None:
        """Go on with the operation that a call is."""
        running.live.append(index)
        call = kin.call_of(op, index)
        if call in self.disk.results:
            self._called((running.lane, index), self.disk.results[call])
            return
        handle = called_handle(running.handle, op.calls[index].tool)
        lane = kin.lane_of(call)
        self.passes[lane] = self._pass(lane, call, handle, (running.lane, index))
        self.advance(self.passes[lane])

    def _called(self, caller: tuple[str, int], record: dict[str, Any] | None) -> None:
        """The operation that is this call has ended, or waits if there is no record."""
        lane, index = caller
        running = self.passes[lane]
        running.live.remove(index)
        tool = self.disk.ops[running.op].calls[index].tool
        self.advance(running, None, [] if record is None else [(index, kin.outcome_of(record, tool), False)])

    def _sleep(self, running: Pass, waiting: tuple[Any, ...], *, for_retry: bool) -> None:
        """Those who do not sit it out are told; the pass is over where nobody does."""
        staying = [each for each in running.observers if (each.wait if for_retry else each.answers)]
        self.finished += [(each.label, waiting) for each in running.observers if each not in staying]
        running.observers = staying
        running.sleeping, running.slept_at = for_retry and bool(staying), self.now
        if not staying:
            del self.passes[running.lane]
            if running.caller is not None:
                self._called(running.caller, None)

    def _request(self, running: Pass, op: Op) -> Any:
        self.reach("effect.model.start")
        said = self.ask_transform(running.gates, op, self.disk.shown(op.lane, projects=self.summing.projects))
        if said is None:
            running.request, running.within = Reply(), "unsent"
            return None
        if said.failed:
            self.reach("effect.model.end")
            return ("stopped", Reply())
        shown = said.value
        number = self.asked[op.id]
        self.asked[op.id] += 1
        settings = running.gates.made(request_place(op, 0), op.settings)
        self.requests.append((op.id, op.attempt, op.model, settings, self._offered(running, op), shown))
        last = [shape[1] for shape in shown if shape[0] == "user" and shape[1].startswith("prompt ")]
        replies = self.prompts[int(last[-1].split()[1])] if last else ()
        reply = spoken(replies[number] if number < len(replies) else Reply(), running.handle)
        if reply.kind == "hang":
            running.request = reply
            running.unsaved = ("half an answer", self.now + FRAMES_EVERY_MS)
            return None
        return self._respond(running, op, reply)

    def end_of_request(self, running: Pass) -> str:
        """The boundary at which the request that is under way ends."""
        return f"effect.{'summary' if self.disk.ops[running.op].at == 'summarizing' else 'model'}.end"

    def _summarize(self, running: Pass, op: Op) -> Any:
        """A request for a summary."""
        self.reach("effect.summary.start")
        prep, number = op.summed.prep, self.summed[op.id]
        assert prep is not None
        self.summed[op.id] += 1
        earlier, messages, turn = prep.about
        asked = (op.id, "summary", op.attempt, op.model, op.settings, earlier, written(messages, turn))
        self.requests.append(asked)
        reply = self.summaries[number] if number < len(self.summaries) else Reply()
        if reply.kind == "hang":
            running.request = reply
            return None
        self.reach("effect.summary.end")
        return (reply.kind, reply)

    def _respond(self, running: Pass, op: Op, reply: Reply) -> Any:
        """The end of a request: hooks are told of a whole answer."""
        text: str | None = None
        if reply.kind not in ("fail", "cut", "long"):
            tools = tuple(call.tool for call in reply.calls)
            said = self.ask_respond(running.gates, op, f"answer {self.asked[op.id]}", tools)
            if said is None:
                running.request, running.within = reply, reply.kind
                return None
            if said.failed:
                self.reach("effect.model.end")
                return ("rejected", reply)
            text = said.value
        self.reach("effect.model.end")
        return (reply.kind, reply, text)

    def _offered(self, running: Pass, op: Op) -> tuple[str, ...]:
        return tuple(tool for tool in op.tools if tool in running.tools)

    def _start(self, running: Pass, id: str, index: int) -> list[Any]:
        """A call's effect starts; its outcome, if it ends at once."""
        self.reach("effect.tool.start")
        op = self.disk.ops[id]
        state, spec = op.calls[index], op.batch[index]
        self.started[id, op.turn, index] += 1
        self.keys.append(call_key(self.disk, op, index))
        running.live.append(index)
        if alone_in_group(op.batch, index):
            if state.tool not in QUESTIONS or state.attempt == 1:
                self._keep(id, index, progress=f"{state.tool} {index} is at attempt {state.attempt}")
            if state.memo is None:
                self._keep(id, index, memo=state.attempt)
            op = self.disk.ops[id]
            state = op.calls[index]
        if state.attempt <= spec.hang:
            return []
        return self._next_in_order(running, op, [index]) if state.attempt == 1 else [self._end(running, op, index)]

    def _keep(self, id: str, index: int, **what: Any) -> None:
        after = self.disk.copy()
        for name, value in what.items():
            setattr(after.ops[id].calls[index], name, value)
            self.commit(name, after)

    def _next_in_order(self, running: Pass, op: Op, live: list[int]) -> list[Any]:
        """Of these calls the one whose turn it is to end, if there is one: the one before it has its outcome."""
        for index in sorted(live):
            before = waits_for(op.batch, index)
            hangs = op.calls[index].attempt <= op.batch[index].hang
            if not hangs and (before is None or op.calls[before].status in ("outcome_ready", "placed")):
                return [self._end(running, op, index)]
        return []

    def _end(self, running: Pass, op: Op, index: int) -> Any:
        self.reach("effect.tool.end")
        running.live.remove(index)
        state, changed = op.calls[index], op.changed.get(index)
        questions = QUESTIONS.get(state.tool, ())
        if len(state.answers) < len(questions):
            return (index, ("asks", questions[len(state.answers)]), False)
        end = changed or op.batch[index].end
        kind = f"{state.tool} {index} attempt {state.attempt} memo {state.memo}{state.mark}{CHANGED if changed else ''}"
        kind += f" says {state.answers}" if questions else ""
        if state.tool in DEFERRING_POLICIES and end != "raise":
            return (index, "deferred", False)
        return (index, ("result", state.tool, "raised" if end == "raise" else kind, end == "raise"), end == "stop")
