"""Operations that are no runs: compactions that somebody asks for, and navigations; opened by an accept."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.border import clean_text
from agentlane.data.digests import digest
from agentlane.data.entries import Compaction
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import WHOLE_MAX, Checkpoint, LaneConfig, Navigating, OperationMeta, OperationState
from agentlane.data.reads import id_text
from agentlane.data.requests import Compact, Navigate, RequestInfo
from agentlane.driver.appending import repair
from agentlane.driver.bounded_path import END_PAGE
from agentlane.driver.draft import PathDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.navigating import known_entry
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.runtime import Runtime
from agentlane.driver.summarizing import Summaries
from agentlane.errors import InvalidMessage, InvalidNavigation, NothingToCompact
from agentlane.machine.context import ModelContext

INSTRUCTIONS_MAX = 20_000
"""Characters of the instructions of one summary."""


class Aside(NamedTuple):
    """What was read for a navigation before its step: where the lane was, and where its path leaves the target's.

    ``leaves``: the model was shown something of what is left behind.
    """

    tip: str | None
    base: str | None
    leaves: bool = False


def checked(request: Compact | Navigate) -> Compact | Navigate:
    """A clean copy; raises ``InvalidMessage`` with the path of what is wrong."""
    if isinstance(request, Compact):
        keep: object = request.keep_tokens
        if keep is not None and (type(keep) is not int or not 0 <= keep <= WHOLE_MAX):
            raise InvalidMessage(
                f"compact.keep_tokens: {keep!r} is no number of tokens; give a whole number of at least 0",
                path="compact.keep_tokens",
            )
        return Compact(_instructions(request.instructions, "compact"), keep)
    if type(request.summarize) is not bool:
        raise InvalidMessage(
            f"navigate.summarize: {request.summarize!r}; True or False is needed here", path="navigate.summarize"
        )
    instructions = _instructions(request.instructions, "navigate")
    if instructions and not request.summarize:
        raise InvalidMessage(
            "navigate.instructions: they are for a summary; give summarize=True", path="navigate.instructions"
        )
    to: object = request.to
    target = None if to is None else id_text(to)
    if to is not None and target is None:
        raise InvalidNavigation(f"navigate.to: {to!r} is no id of an entry", entry_id=repr(to))
    label = None if request.label is None else clean_text(request.label, "navigate.label")
    return Navigate(target, label, request.summarize, instructions)


def request_digest(lane: str, request: Compact | Navigate) -> str:
    """What is the same for the same request on a lane of that name."""
    return digest(lane.encode(), b"|", msgspec.json.encode(request))


async def look_aside(lane: LaneCore, request: Navigate) -> Aside:
    """Where the path that is left parts from the one to the target; ``InvalidNavigation`` for an unknown target."""
    tip = lane.tip
    if request.to is not None:
        await known_entry(lane.runtime, request.to)
    base = await _base(lane.runtime, tip, request.to)
    return Aside(tip, base, request.summarize and tip is not None and await _shows(lane, tip, base))


async def _shows(lane: LaneCore, tip: str, base: str | None) -> bool:
    """Whether the model was shown something of the path to ``tip`` behind ``base``. What a compaction there stands for
    is on the path itself, or before ``base``."""
    after: str | None = None
    while tip != base:
        rows = await lane.runtime.storage.path(tip, limit=END_PAGE, after=after)
        for row in rows:
            if row.id == base:
                return False
            body = codec.BODY.decode(row.payload, f"entry {row.id}")
            context = ModelContext(lane.project)
            context.add(row.id, body)
            if isinstance(body, ToolResultMessage) or (context.view() and not isinstance(body, Compaction)):
                return True
        if len(rows) < END_PAGE:
            return False
        after = rows[-1].id
    return False


async def _base(runtime: Runtime, tip: str | None, target: str | None) -> str | None:
    """The last entry that both paths have. They are walked side by side, a page at a time, from their ends."""
    if tip is None or target is None:
        return None
    ways = (_Way(runtime, tip), _Way(runtime, target))
    while True:
        for way, other in (ways, ways[::-1]):
            found = await way.next()
            if found is not None and found in other.seen:
                return found
        if all(way.ended for way in ways):
            return None


class _Way:
    """The entries of a path from its end on."""

    def __init__(self, runtime: Runtime, start: str) -> None:
        self._runtime = runtime
        self._start = start
        self._page: list[str] = []
        self._last: str | None = None
        self._over = False
        self.seen: set[str] = set()

    @property
    def ended(self) -> bool:
        """Whether its first entry was seen."""
        return self._over and not self._page

    async def next(self) -> str | None:
        if not self._page and not self._over:
            rows = await self._runtime.storage.path(self._start, limit=PAGE, after=self._last, payloads=False)
            self._page = [row.id for row in reversed(rows)]
            self._over = len(rows) < PAGE
            self._last = rows[-1].id if rows else self._last
        if not self._page:
            return None
        id = self._page.pop()
        self.seen.add(id)
        return id


PAGE = 256


def opening(
    lane: LaneCore,
    agent: Agent[Any, Any],
    config: LaneConfig,
    id: str,
    request: Compact | Navigate,
    digest: str,
    aside: Aside | None,
) -> tuple[OpenOperation, PathDraft]:
    """The operation that a request opens, and what its accept places: results of calls that have none at the tip."""
    draft = PathDraft(lane.name, lane.tip)
    compact = request if isinstance(request, Compact) else None
    navigate = request if isinstance(request, Navigate) else None
    if compact is not None:
        repair(lane, draft)
    meta = OperationMeta(
        lane=lane.name,
        request=RequestInfo(kind="compact" if navigate is None else "navigate", digest=digest),
        inputs=(),
        start_tip=lane.tip,
        started_at=lane.runtime.clock.now_ms(),
        key_operation=id,
        compact=compact,
        navigate=navigate,
        base=None if aside is None else aside.base,
    )
    operation = OpenOperation(id, meta, agent.resolve(config), _first_state(lane, navigate, aside, draft.tip))
    if compact is not None and not Summaries(lane, operation, agent).can_be_made:
        raise NothingToCompact(
            f"lane {lane.name!r} shows its model nothing beyond what is kept; compact it later, or with a smaller "
            "keep_tokens",
            lane=lane.name,
        )
    return operation, draft


def _first_state(lane: LaneCore, navigate: Navigate | None, aside: Aside | None, tip: str | None) -> OperationState:
    if navigate is None:
        return Checkpoint(next="summarize", trigger=tip or "")
    if navigate.label is not None and lane.tip is None:
        raise InvalidNavigation(f"lane {lane.name!r} is empty: it leaves no entry behind that could have a label")
    if aside is not None and aside.leaves and lane.tip is not None:
        return Checkpoint(next="summarize", trigger=lane.tip)
    return Navigating(target=navigate.to, label=navigate.label)


def _instructions(text: object, what: str) -> str:
    path = f"{what}.instructions"
    if not isinstance(text, str):
        raise InvalidMessage(f"{path}: text is needed here, not {type(text).__name__}", path=path)
    if len(text) > INSTRUCTIONS_MAX:
        raise InvalidMessage(f"{path}: {len(text)} characters; at most {INSTRUCTIONS_MAX} are taken", path=path)
    return clean_text(text, path)
