"""Plays one program on every backend and on the plain model, and compares all of them after each step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentlane.data.writes import Address
from agentlane.storage.contract import SessionStorage
from agentlane.testing import check_invariants, check_trace, check_trace_against
from agentlane.testing.conformance.model import difference
from tests.stateful.plain_host import Action, Open, PlainHost, Reopen
from tests.stateful.programs import Kill, OpenAgain, Program, SetLabel
from tests.stateful.summing import Summing
from tests.stateful.world import BACKENDS, Backend, World

VALUES = (
    "branch.tip",
    "lane.config",
    "lane.state",
    "op.meta",
    "op.config",
    "op.state",
    "op.memo",
    "op.args",
    "op.returned",
    "op.answer",
    "op.decision",
    "op.prep",
    "inbox",
    "receipt",
    "pending.entry",
    "pending.output",
    "pending.approval",
    "result",
    "session.name",
    "label",
    "app.values",
)
LISTS = ("pending.frames", "app.lists")
LOOK_AT_ALL_EVERY = 8
"""Steps between two looks at every label and every result."""


class Differs(AssertionError):
    """A backend does not do what the plain model says; the text tells the program so far."""


def run(program: Program, folder: Path, *, backends: tuple[Backend, ...] = BACKENDS) -> PlainHost:
    """Play a program; gives the plain model as it ended."""
    return asyncio.run(_Played(program, folder, backends).whole())


class _Played:
    """One program while it is played."""

    def __init__(self, program: Program, folder: Path, backends: tuple[Backend, ...]) -> None:
        self.program = program
        self.plain = PlainHost(
            program.prompts, hooks=program.hooks, summing=program.summing or Summing(), summaries=program.summaries
        )
        self.worlds = [World(backend, folder, program) for backend in backends]
        self.done: list[str] = []

    async def whole(self) -> PlainHost:
        try:
            for number, step in enumerate(self.program.steps):
                for action in self.plain.before(step):
                    await self.act(action, f"{number}:")
                await self.act(self.plain.concrete(step), f"{number}:{step}")
            await self.at_the_end()
        finally:
            for world in self.worlds:
                await world.end()
        return self.plain

    async def act(self, action: Action, label: str) -> None:
        """Play one action on all, and compare all; what is raised on the way is a difference, too."""
        try:
            await self._act(action, label)
        except Differs:
            raise
        except Exception as error:
            steps = "\n".join(f"  {line}" for line in self.done)
            raise Differs(f"\n{error!r}\nafter\n{steps}\nof\n{self.program!r}") from error

    async def _act(self, action: Action, label: str) -> None:
        several = self.plain.several
        want = self.plain.play(action, label)
        ends = dict(self.plain.finished)
        self.done.append(f"{action} -> {_brief(want)}{f' and {_brief(ends)}' if ends else ''}")
        look = self.what_to_look_at(action)
        views = None if look is None else self.plain.view(results=look["results"])
        for world in self.worlds:
            got = await world.play(action, label, several=several)
            self.same(world, "whether a process lives", world.session is not None, self.plain.phase != "down")
            self.same(world, "the boundaries", _boundaries(world), self.plain.trace if world.session else [])
            ended = dict(world.finished)
            if look is not None and world.session is not None and views is not None:
                await world.looker.learn(world.session, self.plain.disk)
                view = await world.looker.view(world.session, **look)
                for part in view:
                    self.same(world, part, view[part], views[part])
                ended = {name: world.looker.told(outcome) for name, outcome in ended.items()}
                self.same(world, "what drives told", ended, ends)
                self.same(world, "what hooks were told", world.effects.hooked.heard(world.names), self.plain.heard)
                self.same(world, "hooks passed over", _passed_over(world), self.plain.passed_over)
                self.same(world, "the requests", world.requests(), self.plain.requests)
                keys = [world.names.call_key(each) for each in world.effects.keys]
                self.same(world, "the keys of calls", sorted(keys), sorted(self.plain.keys))
            self.same(world, "the outcome", world.looker.told(got), want)
            self.same(world, "violations of pairing", world.effects.violations, [])
            starts = sorted(world.effects.started.values())
            self.same(world, "starts of calls", starts, sorted(self.plain.started.values()))
        if look is not None:
            await self.same_dumps()

    def what_to_look_at(self, action: Action) -> dict[str, Any] | None:
        """Everything once a session was opened, and now and then; else what may have changed. None: there is none."""
        disk = self.plain.disk
        if self.plain.phase != "open":
            return None
        if isinstance(action, Open | Reopen) or len(self.done) % LOOK_AT_ALL_EVERY == 0:
            return {"labels": None, "results": None}
        touched = {call.entry for call in getattr(action, "calls", [action]) if isinstance(call, SetLabel)}
        return {"labels": touched.union(disk.labels), "results": {lane.last for lane in disk.lanes.values()}}

    async def same_dumps(self) -> None:
        """All backends hold the same, to the byte, sequence numbers and times included; and it is sound."""
        first: Any = None
        for world in self.worlds:
            assert world.session is not None
            found = await _dump(world.session._runtime.storage)
            if first is None:
                first = found
                held = any(hook.point == "after_tool" for hook in self.program.hooks)
                self.same(world, "invariants", await check_invariants(world.session, held=held), [])
            differs = difference(found, first)
            if differs is not None:
                raise self.failure(world, f"its dump is not that of {self.worlds[0].backend}: {differs}")

    async def at_the_end(self) -> None:
        """The histories are sound, and a new process finds everything."""
        if self.plain.phase == "open":
            await self.act(Kill(), "end")
        for action in self.plain.before(OpenAgain()):
            await self.act(action, "end")
        for world in self.worlds:
            assert world.session is not None
            self.same(world, "the trace in the store", await check_trace_against(world.trace, world.session), [])
            found = check_trace(world.trace)
            self.same(world, "the trace", found, [])

    def same(self, world: World, what: str, got: Any, want: Any) -> None:
        if got != want:
            raise self.failure(world, f"{what}:\n  has  {got!r}\n  not  {want!r}")

    def failure(self, world: World, text: str) -> Differs:
        steps = "\n".join(f"  {line}" for line in self.done)
        return Differs(f"\n{world.backend}: {text}\nafter\n{steps}\nof\n{self.program!r}")


def _passed_over(world: World) -> int:
    """How many failures of hooks were reported in this life."""
    assert world.session is not None
    return sum(each.endswith("the hook was passed over") for each in world.session.findings)


def _boundaries(world: World) -> list[str]:
    return list(world.plan.trace) if world.session is not None else []


async def _dump(storage: SessionStorage) -> dict[str, Any]:
    """All that a store holds of the session, in as few reads as it takes; together, since each may be a way to a thread
    and back."""
    entries, usage, values, keys = await asyncio.gather(
        storage.scan(),
        storage.usage(),
        asyncio.gather(*map(storage.values, VALUES)),
        asyncio.gather(*map(storage.lists, LISTS)),
    )
    lists = {
        space: {key: await storage.elements(Address(space, key)) for key in each}
        for space, each in zip(LISTS, keys, strict=True)
    }
    return {
        "stats": storage.stats(),
        "entries": entries,
        "usage": usage,
        "values": dict(zip(VALUES, values, strict=True)),
        "lists": lists,
    }


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:160]}..."
