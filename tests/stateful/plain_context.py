"""The plain model of what a model is shown of a path with summaries in it, and of where a path is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.stateful.summing import Summing, projected, size_of

Shape = tuple[Any, ...]


@dataclass
class Piece:
    """An entry that is shown, with all that is shown for it; results that are missing go with what is before them."""

    number: int
    kind: str
    shapes: list[Shape]

    @property
    def size(self) -> int:
        return sum(map(size_of, self.shapes))


@dataclass
class Shown:
    """What is shown of a path. ``earlier`` is the summary in front; ``known``: how much was shown when it came."""

    pieces: list[Piece] = field(default_factory=list)
    earlier: str | None = None
    known: int = 0

    @property
    def messages(self) -> list[Shape]:
        summary = [] if self.earlier is None else [("user", f"before: {self.earlier}")]
        return [*summary, *(shape for piece in self.pieces for shape in piece.shapes)]

    @property
    def size(self) -> int:
        return sum(map(size_of, self.messages))

    @property
    def new(self) -> int | None:
        """What came since the newest compaction."""
        return None if self.earlier is None else sum(map(size_of, self.messages[self.known :]))


def shown(entries: Sequence[Any], path: Sequence[int], *, projects: bool) -> Shown:
    """What is shown of a path: from the newest compaction on, with what that keeps."""
    found, taken = Shown(), list(path)
    starts = [at for at, number in enumerate(taken) if entries[number].body[0] == "compaction"]
    if starts:
        at = starts[-1]
        _, summary, kept_from, *_ = entries[taken[at]].body
        known = [number for number in taken[:at] if entries[number].body[0] != "compaction"]
        kept = known[known.index(kept_from) :] if kept_from in known else []
        found = Shown(_pieces(entries, kept, projects), summary)
        found.known = len(found.messages)
        taken = [*kept, *taken[at + 1 :]]
    found.pieces = _pieces(entries, taken, projects)
    return found


def _pieces(entries: Sequence[Any], path: Sequence[int], projects: bool) -> list[Piece]:
    pieces: list[Piece] = []
    batch: dict[tuple[int, int], Shape | None] = {}
    tools: dict[tuple[int, int], str] = {}
    results: dict[tuple[int, int], int] = {}
    behind: list[Piece] = []

    def close() -> None:
        for call, result in batch.items():
            if result is None:
                pieces[-1].shapes.append(("result", tools[call], "not available", True))
            else:
                pieces.append(Piece(results[call], "result", [result]))
        pieces.extend(behind)
        batch.clear()
        behind.clear()

    for number in path:
        body, call = entries[number].body, entries[number].call
        if body[0] in ("user", "branch_summary"):
            close()
            said = body[1] if body[0] == "user" else f"elsewhere: {body[1]}"
            pieces.append(Piece(number, body[0], [("user", said)]))
        elif body[0] == "custom" and projects:
            (behind if batch else pieces).append(Piece(number, "custom", [("user", projected(body[2]))]))
        elif body[0] == "assistant" and body[2] not in ("error", "aborted"):
            close()
            if body[1] or body[4]:
                pieces.append(Piece(number, "assistant", [("assistant", body[1], body[4])]))
            for index, tool in enumerate(body[4]):
                batch[number, index], tools[number, index] = None, tool
        elif call in batch and batch[call] is None:
            batch[call], results[call] = body, number
            if all(batch.values()):
                close()
    close()
    return pieces


@dataclass
class Cut:
    """The pieces before ``at`` are summarized. ``turn``: from which on they are of one that goes on behind it."""

    at: int
    split: bool = False
    turn: int | None = None


def cut(pieces: list[Piece], keep: int, unanswered: int) -> Cut | None:
    """Where to cut; None if nothing would be before it."""
    tail = [sum(piece.size for piece in pieces[at:]) for at in range(len(pieces) + 1)]
    if tail[0] <= keep:
        return None
    turns = [
        at
        for at, piece in enumerate(pieces)
        if piece.kind in ("user", "branch_summary") and _before(pieces, at) not in ("user", "branch_summary")
    ]
    users = [at for at, piece in enumerate(pieces) if piece.kind == "user"]
    if unanswered and users:
        latest = users[-min(unanswered, len(users))]
        at = min([*(each for each in turns if tail[each] <= keep), latest])
        return Cut(at) if at else None
    fitting = [at for at in turns if tail[at] <= keep]
    if fitting:
        return Cut(fitting[0]) if fitting[0] else None
    last = turns[-1] if turns else 0
    inside = [at for at in range(last + 1, len(pieces)) if pieces[at].kind == "assistant" and tail[at] <= keep]
    if inside:
        return Cut(inside[0], True, last)
    kinds = [(piece.kind, piece) for piece in pieces if piece.kind != "custom"]
    under_way = bool(kinds) and (
        kinds[-1][0] == "result" or (kinds[-1][0] == "assistant" and bool(kinds[-1][1].shapes[0][2]))
    )
    return Cut(len(pieces), under_way, last if under_way else None)


def _before(pieces: list[Piece], at: int) -> str:
    """What stands before a piece, what applications put there aside."""
    return next((piece.kind for piece in reversed(pieces[:at]) if piece.kind != "custom"), "")


def kept(summing: Summing, reason: str, size: int, asked: int | None) -> int:
    """How much is kept, in tokens."""
    if asked is not None:
        return asked
    keep, window = summing.policy_keep, summing.threshold
    if reason == "overflow" and (window is None or size <= window):
        window = size * 3 // 4
    return keep if window is None else min(keep, window // 4)
