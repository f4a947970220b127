"""Writes a history that was read behind a branch: entries in commits of bounded size, the tip in the last of them.

All of its commits are handed over in one step of the branch's line, so nothing comes between them, and they are made
whether or not anybody waits. Until the last of them nothing leads to the entries: whoever dies before it has imported
nothing that can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from agentlane.data import addresses, codec
from agentlane.data.entries import EntryBody
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.data.writes import SetValue, Write
from agentlane.driver.appending import repair
from agentlane.driver.draft import PathDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.runtime import Runtime
from agentlane.errors import LaneBusy
from agentlane.histories.findings import ImportedHistory, ImportReport
from agentlane.ids import call_id
from agentlane.storage.contract import Commit

COMMIT_BYTES_MAX = 256 * 1024
"""How much content one commit of an import takes, but for an entry that alone is larger."""


class _Sealed(NamedTuple):
    """The body of one entry to be, and how it is stored."""

    payload: bytes
    body: EntryBody


async def import_history(core: LaneCore, history: ImportedHistory) -> ImportReport:
    """See ``Session.import_messages``."""
    pieces = list(_pieces(history.bodies))
    while True:
        exists = core.exists
        if exists:
            _check_idle(core)
            await core.load_end()

        def decide(*, exists: bool = exists) -> Decision[ImportReport | None] | Done[ImportReport | None]:
            if core.exists is not exists or (exists and not core.end_known):
                return Done(None)  # the branch was made, or is gone, since it was looked at
            return _decide(core, history.report, pieces)

        report = await core.line.run(decide)
        if report is not None:
            return report


def _decide(
    core: LaneCore, report: ImportReport, pieces: Sequence[Sequence[_Sealed]]
) -> Decision[ImportReport | None] | Done[ImportReport | None]:
    exists, draft = core.exists, PathDraft(core.name, core.tip)
    if exists:
        _check_idle(core)
        repair(core, draft)
    placing = _Placing(core.runtime, draft)
    for piece in pieces[:-1]:
        placing.place(piece)
        writes, draft.writes = draft.writes, []
        _commit(core.runtime, "import_entries", writes)
    placing.place(pieces[-1])
    report = replace(report, tip=draft.tip)
    if exists and not draft.placed:
        return Done(report)
    tip = SetValue(addresses.branch_tip(core.name), codec.encode(draft.tip))

    def publish(_commit: Commit) -> ImportReport:
        if exists:
            core.take_path(draft)
        else:
            core.exists = True
            core.reset(draft.tip, None, None, None)
        return report

    return Decision([*draft.writes, tip], "import", publish)


def _commit(runtime: Runtime, name: str, writes: Sequence[Write]) -> None:
    """Hand over a commit that shows nowhere. If it fails, so do those behind it: their entries have no parents."""
    runtime.submit(writes, lambda _commit: None, name)


class _Placing:
    """Places bodies as entries. The ids of results are those that their calls reserve."""

    def __init__(self, runtime: Runtime, draft: PathDraft) -> None:
        self._runtime = runtime
        self._draft = draft
        self._answer = ""
        self._results = 0

    def place(self, piece: Sequence[_Sealed]) -> None:
        for payload, body in piece:
            if isinstance(body, ToolResultMessage):  # reading has put it right behind its answer
                id, self._results = call_id(self._answer, self._results), self._results + 1
            else:
                id = self._runtime.ids.new()
                if isinstance(body, AssistantMessage):
                    self._answer, self._results = id, 0
            self._draft.place(id, body, payload)


def _pieces(bodies: Sequence[EntryBody]) -> Iterator[list[_Sealed]]:
    """The bodies as they are stored, in pieces that fill a commit; one that is empty where there are none."""
    piece: list[_Sealed] = []
    size_bytes = 0
    for index, body in enumerate(bodies):
        sealed = _Sealed(*codec.BODY.seal(body, f"entries[{index}]"))
        if piece and size_bytes + len(sealed.payload) > COMMIT_BYTES_MAX:
            yield piece
            piece, size_bytes = [], 0
        piece.append(sealed)
        size_bytes += len(sealed.payload)
    yield piece


def _check_idle(core: LaneCore) -> None:
    if core.operation is not None:
        raise LaneBusy(
            f"lane {core.name!r} has the open operation {core.operation.id}; drive or abort it before an import",
            operation_id=core.operation.id,
        )
