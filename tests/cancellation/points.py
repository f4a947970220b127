"""One point: a call cancelled in one way at one of its suspensions, and everything that must be true afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentlane.testing import check_invariants
from tests.cancellation.kinds import UNCANCELLED, UNSTARTED, Kind, at_boundary, turns_later
from tests.cancellation.leaks import run_clean
from tests.cancellation.recipes import Recipe
from tests.cancellation.watched import Bell, Watched
from tests.cancellation.world import Backend, World, shape

SUSPENSIONS_MAX = 200
"""More suspensions than any call has: one that reaches them is no longer cancelled but waits for ever."""
TELLING = {"task", "thrown away"}
"""Kinds that are tried once more than the call is known to be suspended."""
LATER_MAX = 200
"""More turns of the loop, and more boundaries, than any call takes here."""
TICKS_MAX = 60
"""In how many turns of the loop a cancelled call ends."""
DELIVERIES_MAX = 5
"""How often a call is told that it is cancelled, at most: the times that we do it, and one of anyio's own."""


class Played(NamedTuple):
    """What came of one point. ``shape`` is empty where a memory store was closed, and all is gone with it."""

    struck: bool
    cancelled: bool
    suspensions: int
    ticks: int
    deliveries: int
    shape: str


class Stage:
    """Where the points of one backend are played: each in a folder of its own, on a copy of one filled place."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self._folder = folder
        self.count = 0
        self._ends: dict[str, list[Played]] = {}
        self._template: Path | None = None
        if backend in ("jsonl", "sqlite"):
            self._template = folder / "template"
            self._template.mkdir()
            run_clean(self._fill, self._template)

    def play(self, recipe: Recipe, kind: Kind, at: int) -> Played:
        """Make the recipe's call on a fresh world, cancelled at its suspension ``at``; AssertionError if that shows."""
        self.count += 1
        folder = self._folder / str(self.count)
        folder.mkdir()
        try:
            return run_clean(lambda: self._play(recipe, kind, at, folder), folder)
        except BaseException as error:
            error.add_note(f"{recipe.name} on {self.backend}, cancelled by {kind.name} at suspension {at}")
            raise

    def allowed(self, recipe: Recipe) -> set[str]:
        """What may be left of a call: what is there when it ran to its end, or when it never began."""
        return {played.shape for played in self._both_ends(recipe)}

    def suspensions(self, recipe: Recipe) -> int:
        """How often the call was suspended when it ran to its end."""
        return max(played.suspensions for played in self._both_ends(recipe))

    def _both_ends(self, recipe: Recipe) -> list[Played]:
        if recipe.name not in self._ends:
            self._ends[recipe.name] = [self.play(recipe, kind, 0) for kind in (UNCANCELLED, UNSTARTED)]
        return self._ends[recipe.name]

    async def _fill(self) -> None:
        assert self._template is not None
        world = World(self.backend, self._template)
        await world.fill()
        await world.end()

    async def _play(self, recipe: Recipe, kind: Kind, at: int, folder: Path) -> Played:
        world, bell = World(self.backend, folder), Bell()
        if kind.by_boundary:
            world.probe = bell
        await world.start(self._template)
        call = await recipe.prepare(world)
        watched = Watched(call(), at=at, again=kind.again, bell=bell)
        world.watch(watched)
        cancelled = await kind.run(watched)
        assert cancelled or not watched.struck or not kind.at_once, "the call returned although it was cancelled"
        played = Played(
            watched.struck,
            cancelled,
            watched.suspensions,
            watched.ended_at_tick - watched.struck_at_tick if watched.struck else 0,
            watched.deliveries,
            await _afterwards(world, recipe),
        )
        assert played.ticks <= TICKS_MAX, f"{played.ticks} turns of the loop until the call had ended"
        assert played.deliveries <= DELIVERIES_MAX, f"it was told {played.deliveries} times that it is cancelled"
        return played


def sweep(stage: Stage, recipe: Recipe, kind: Kind) -> Iterator[Played]:
    """The recipe's call cancelled at each of its suspensions, until it ends before it is; what is left is right.

    How many there are the first kinds find out, by going on until none is left; the others believe them.
    """
    for at in range(1, SUSPENSIONS_MAX + 1):
        if at > stage.suspensions(recipe) and kind.name not in TELLING:
            return
        played = stage.play(recipe, kind, at)
        if not played.struck:
            return
        yield played
        allowed = stage.allowed(recipe)
        assert played.shape in allowed, "\n\nor\n\n".join([f"neither all nor nothing:\n{played.shape}", *allowed])
    raise AssertionError(f"{recipe.name} waits for ever: {SUSPENSIONS_MAX} suspensions")


def sweep_later(stage: Stage, recipe: Recipe, *, everything: bool = False) -> Iterator[Played]:
    """The recipe's call cancelled at each state of what it waits for, until it ends before it is.

    That is in each turn of the loop where a commit takes none of its own, and else at each boundary. Cancelling
    ``everything`` ends a pass as a crash does, so what is left is only asked to be sound.
    """
    later = turns_later if stage.backend in ("memory", "gated") else at_boundary
    for number in range(1, LATER_MAX):
        played = stage.play(recipe, later(number, everything=everything), 1)
        yield played
        if not everything:
            assert played.shape in stage.allowed(recipe), f"at {number} neither all nor nothing:\n{played.shape}"
        if not played.struck or not played.cancelled:
            return
    raise AssertionError(f"{recipe.name} waits for ever: {LATER_MAX}")


async def _afterwards(world: World, recipe: Recipe) -> str:
    if recipe.ends_store:
        await world.store.close()
        await world.session.close()
        if world.backend in ("memory", "gated"):
            await world.end()
            return ""
        world.store = world.new_store()
    at_rest = await world.come_to_rest()
    await world.settle()
    settled = shape(at_rest or await world.known(world.session))
    await world.go_on()
    before = await world.known(world.session)
    await world.reopen()
    after = await world.known(world.session)
    assert after == before, f"memory:\n{before}\nreopened:\n{after}"
    assert await check_invariants(world.session) == []
    await world.end()
    return settled
