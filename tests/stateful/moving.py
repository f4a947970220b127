"""Playing moves on a real session: what they answer, and handles that are kept while their branches change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentlane import (
    AgentLane,
    Branch,
    NavigateResult,
    Prompt,
    Queued,
    RewindResult,
    Session,
    TextPart,
    UserMessage,
)
from tests.stateful.moves import (
    KEPT_PROMPT,
    KEPT_TEXT,
    DeleteBranch,
    KeepHandle,
    Move,
    Navigate,
    RenameBranch,
    Rewind,
    UseHandle,
)
from tests.stateful.programs import BRANCHES
from tests.stateful.shapes import Names

GetLane = Callable[[int], Awaitable[AgentLane[Any, Any]]]


class Hands:
    """The handles that a host has kept in this life."""

    def __init__(self, names: Names, handles: dict[tuple[str, int], AgentLane[Any, Any]]) -> None:
        self._names = names
        self._handles = handles
        self._kept: list[Branch] = []
        self._session: Session | None = None

    async def play(self, action: Move, session: Session, lane: GetLane) -> Any:
        names = self._names
        if session is not self._session:
            self._session, self._kept = session, []
        if isinstance(action, RenameBranch | DeleteBranch):
            for key in [key for key in self._handles if key[0] == BRANCHES[action.branch]]:
                del self._handles[key]  # whoever wants the lane asks for it anew, by its name
        match action:
            case Navigate(on, to, label):
                return await (await lane(on)).navigate(names.entry(to), label=label)
            case Rewind(on, before, label):
                return await (await lane(on)).rewind(names.entry(before) or "", label=label)
            case RenameBranch(branch, name):
                await session.rename_branch(BRANCHES[branch], BRANCHES[name])
            case DeleteBranch(branch):
                await session.delete_branch(BRANCHES[branch])
            case KeepHandle(branch):
                name, handle = BRANCHES[branch], session.branch(BRANCHES[branch])
                self._kept.append(await lane(branch) if name in session.lanes() else handle)
            case UseHandle(which, use):
                if not self._kept:
                    return "nothing"
                return await self._use(session, self._kept[-1 - which % len(self._kept)], use)
        return "done"

    async def _use(self, session: Session, handle: Branch, use: str) -> Any:
        if use == "append":
            made = await handle.append_message(UserMessage(content=(TextPart(text=KEPT_TEXT),)))
            return made if isinstance(made, Queued) else "done"
        if isinstance(handle, AgentLane):
            match use:
                case "navigate":
                    return await handle.navigate(None)
                case "steer":
                    return await handle.steer(KEPT_TEXT)
                case "accept":
                    admitted = await handle.accept(Prompt(KEPT_PROMPT))
                    self._names.take_entries([entry.id for entry in await session.entries()])
                    return ("admitted", tuple(self._names.numbers[each] for each in admitted.inputs))
        tip = handle.tip()
        return ("at", handle.name, self._names.number(tip))


def told_move(names: Names, outcome: NavigateResult | RewindResult) -> tuple[Any, ...]:
    """What a move answered, in the plain model's words."""
    went = ("moved", names.number(outcome.from_tip), names.number(outcome.tip))
    if isinstance(outcome, NavigateResult):
        return went
    return (*went, tuple(names.body(message)[1] for message in outcome.messages))
