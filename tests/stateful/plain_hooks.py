"""The plain model of hooks: in their order, each told what those before it made, until one hangs, refuses or fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tests.stateful.hooks import FOLLOW_UPS_MAX, Hook, Hooks
from tests.stateful.plain import Plain, Refused
from tests.stateful.plain_disk import Op
from tests.stateful.summing import UNIT

REFUSED = "navigation_refused"
Place: TypeAlias = tuple[str, int, int]
"""A point, the turn it is about, and which attempt or call of it."""


@dataclass(frozen=True)
class Said:
    """What the hooks of a point made of something, or why it must not be: a reason, or what failed."""

    value: Any = None
    refusal: str | None = None
    failed: str | None = None


@dataclass
class Gates:
    """What hooks said before the steps of one pass."""

    hooks: tuple[tuple[int, Hook], ...] = ()
    recovered: bool = False
    said: dict[Place, Said] = field(default_factory=dict)
    hanging: set[Place] = field(default_factory=set)

    def at(self, point: str) -> list[tuple[int, Hook]]:
        """The hooks of a point, each with its number."""
        return [each for each in self.hooks if each[1].point == point]

    @property
    def failed(self) -> str | None:
        """The code with which the run must not go on."""
        failed = (said.failed for place, said in self.said.items() if place[0] != "before_tool" and said.failed)
        return next((REFUSED if each == REFUSED else "hook_failed" for each in failed), None)

    def silent(self, places: Iterable[Place]) -> list[Place]:
        """Where hooks have not spoken yet."""
        return [place for place in places if self.at(place[0]) and place not in self.said]

    def held(self, op: Op) -> set[int]:
        """Calls whose results must not be placed yet; one whose hook fails the run waits for all others."""
        if op.cancelled or not self.at("after_tool"):
            return set()
        said = {i: self.said.get(("after_tool", op.turn, i)) for i, call in enumerate(op.calls) if _open(call.status)}
        held = {index for index, each in said.items() if each is None}
        return held and held | {index for index, each in said.items() if each is not None and each.failed}

    def refusal(self, op: Op, index: int) -> str | None:
        """Why a call must not start."""
        said = self.said.get(("before_tool", op.turn, index), Said())
        return said.refusal or said.failed

    def made(self, place: Place, otherwise: Any) -> Any:
        """What the hooks of a place made."""
        said = self.said.get(place)
        return otherwise if said is None or said.failed else said.value

    def forget(self, op: Op | None) -> None:
        """A commit is made: what nobody asks for any more goes."""
        self.said = {place: said for place, said in self.said.items() if _needed(place, op)}
        self.hanging = {place for place in self.hanging if _needed(place, op)}

    def drop(self) -> None:
        """An abort came."""
        self.said.clear()
        self.hanging.clear()


def request_place(op: Op, ahead: int = 1) -> Place:
    """The place of the next request; or of the one that is under way."""
    first = op.at == "checkpoint"
    return ("before_request", op.turn + first, ahead if first else op.attempt + ahead)


def is_first(op: Op) -> bool:
    """Whether a run has not asked its model yet, for a summary neither."""
    summed = op.summed
    return op.at == "checkpoint" and op.turn == 0 and not (summed.next or summed.looked or summed.overflow is not None)


def _open(status: str) -> bool:
    return status != "placed"


def _needed(place: Place, op: Op | None) -> bool:
    point, turn, which = place
    if op is None:
        return False
    if point == "before_run":
        return op.at in ("checkpoint", "summarizing", "summary_wait") and op.turn == 0
    if point == "before_navigation":
        return op.summed.apart is not None
    if point == "before_request":
        asks = op.at in ("checkpoint", "generating", "retry_wait") and op.summed.next != "summarize"
        return asks and place in (request_place(op, 0), request_place(op))
    if point == "before_compaction":
        return False
    if point == "before_finish":
        return op.at == "checkpoint" and op.finish and turn == op.turn
    if op.at != "tools" or turn != op.turn:
        return False
    return op.calls[which].status == ("planned" if point == "before_tool" else "outcome_ready")


class Asking(Protocol):
    """The pass in which hooks are asked."""

    op: str
    gates: Gates


@dataclass
class PlainHooked(Plain):
    """The plain model with its hooks."""

    hooks: Hooks = ()
    times: Counter[int] = field(default_factory=Counter)
    """How often each was asked; deaths do not forget it, as little as the next."""
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    passed_over: int = 0
    """Failures in this life that stood in nobody's way."""
    driven: set[str] = field(default_factory=set)
    """Operations that a pass drove, or that were there when the session was opened."""

    def find_operations(self) -> None:
        """The session was opened: what is open may have been driven."""
        self.driven = set(self.disk.ops)

    def gates_of(self, op: str, handle: int) -> Gates:
        """Those of a new pass."""
        recovered = op in self.driven
        self.driven.add(op)
        return Gates(self._in_order(handle), recovered)

    def _in_order(self, handle: int) -> tuple[tuple[int, Hook], ...]:
        numbered = tuple(enumerate(self.hooks))
        return numbered[::-1] if handle else numbered

    def ask(
        self,
        hooks: Iterable[tuple[int, Hook]],
        value: Any,
        tell: Callable[[Any], tuple[Any, ...]],
        change: Callable[[int, Any], Any],
    ) -> Said | None:
        """What hooks make of a value; None if one hangs."""
        for number, hook in hooks:
            self.times[number] += 1
            self.heard.append((number, hook.point, *tell(value)))
            if self.times[number] <= hook.hangs:
                return None
            if hook.outcome == "change":
                value = change(number, value)
                if hook.point == "before_compaction":
                    break
            elif hook.outcome == "refuse":
                return Said(value, refusal=f"blocked h{number}")
            elif hook.outcome == "fail" and hook.blocks:
                return Said(value, failed="raised" if hook.says == "raise" else "unusable")
            elif hook.outcome == "fail":
                self.passed_over += 1
        return Said(value)

    def ask_at(self, running: Asking, place: Place) -> bool:
        """Ask the hooks that stand before a step; whether they have spoken."""
        op, gates = self.disk.ops[running.op], running.gates
        self.reach("effect.hook.start")
        said = self._ask_at(gates, op, place)
        if said is None:
            gates.hanging.add(place)
            return False
        self.reach("effect.hook.end")
        gates.said[place] = said
        return True

    def _ask_at(self, gates: Gates, op: Op, place: Place) -> Said | None:
        point, turn, which = place
        hooks, entries = gates.at(point), self.disk.entries
        told = (op.lane, op.id, turn, gates.recovered)
        if point == "before_run":
            inputs = tuple(entries[each].body[1] for each in op.inputs)
            return self.ask(hooks, None, lambda _: (*told, inputs), _nothing)
        if point == "before_navigation":
            assert op.summed.apart is not None
            move = (op.lane, self.disk.tips[op.lane], op.summed.apart.to, op.summed.apart.label, ())
            said = self.ask(hooks, None, lambda _: move, _nothing)
            return Said(failed=REFUSED) if said is not None and said.refusal else said
        if point == "before_request":
            return self.ask(
                hooks,
                op.settings,
                lambda settings: (*told, which, op.model, settings),
                lambda number, settings: {**settings, "hook": number},
            )
        if point == "before_finish":
            text = "" if op.answer is None else entries[op.answer].body[1]
            said = self.ask(
                hooks, (), lambda _: (*told, text, op.pushed), lambda number, more: (*more, f"more h{number}")
            )
            room = max(0, FOLLOW_UPS_MAX - op.pushed)
            return said and Said(said.value[:room], failed=said.failed)
        if point == "before_compaction":
            prep = op.summed.prep
            assert prep is not None
            told = (op.lane, op.id, turn + 1, gates.recovered)
            about = (prep.reason, prep.about[1], prep.about[0], prep.size // UNIT)
            return self.ask(hooks, None, lambda _: (*told, *about), lambda number, _: f"summary of h{number}")
        call = op.calls[which]
        if point == "before_tool":
            return self.ask(
                hooks,
                call.mark,
                lambda mark: (*told, call.tool, which, mark),
                lambda number, mark: f"{mark} h{number}",
            )
        _, tool, text, is_error = call.body or ("", "", "", False)
        return self.ask(
            hooks,
            text,
            lambda text: (*told, (tool, text, is_error), call.stop, call.mark),
            lambda number, text: f"{text} h{number}",
        )

    # Around a request.

    def ask_transform(self, gates: Gates, op: Op, shown: list[tuple[Any, ...]]) -> Said | None:
        """The messages that are sent."""
        return self._ask_around(
            "transform_context",
            gates,
            op,
            shown,
            lambda shown: (op.attempt, op.model, shown),
            lambda number, shown: [*shown, ("user", f"shown by h{number}")],
        )

    def ask_respond(self, gates: Gates, op: Op, text: str, tools: tuple[str, ...]) -> Said | None:
        """The text of the answer that is settled. What came is durable before hooks are told."""
        if not gates.at("after_response"):
            return Said(text)
        after = self.disk.copy()
        after.ops[op.id].frames, after.ops[op.id].framed = text, tools
        self.commit("frames", after)
        return self._ask_around(
            "after_response",
            gates,
            op,
            text,
            lambda text: (op.attempt, ("assistant", text, tools)),
            lambda number, text: f"{text} h{number}",
        )

    def _ask_around(
        self, point: str, gates: Gates, op: Op, value: Any, seen: Callable[[Any], tuple[Any, ...]], change: Any
    ) -> Said | None:
        hooks = gates.at(point)
        if not hooks:
            return Said(value)
        self.reach("effect.hook.start")
        told = (op.lane, op.id, op.turn, gates.recovered)
        said = self.ask(hooks, value, lambda value: (*told, *seen(value)), change)
        if said is not None and not said.failed:
            self.reach("effect.hook.end")
        return said

    # Before a move.

    def ask_to_move(self, lane: str, to: int | None, label: str | None, messages: tuple[str, ...]) -> None:
        """Raise if a hook does not let the lane move."""
        told = (lane, self.disk.tips[lane], to, label, messages)
        for hook in Gates(self._in_order(0)).at("before_navigation"):
            self.reach("effect.hook.start")
            said = self.ask([hook], None, lambda _: told, _nothing) or Said()
            if said.failed:
                raise Refused("InvalidNavigation")
            self.reach("effect.hook.end")
            if said.refusal:
                raise Refused("InvalidNavigation")


def _nothing(_: int, value: Any) -> Any:
    return value
