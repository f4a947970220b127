"""Endings that are known: where two histories in memory have left the same behind, the same goes on from there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from agentlane.testing.matrix.checks import Ended, aborts_of
from agentlane.testing.matrix.found import Findings
from agentlane.testing.matrix.history import History
from agentlane.testing.matrix.hooked import Hooked
from agentlane.testing.matrix.lives import Lived
from agentlane.testing.matrix.witness import Asked, Start


class Ending(NamedTuple):
    """How a history ended, and what its processes did and found from the moment on that it was known by."""

    ended: Ended
    lives: Sequence[Lived]
    starts: Sequence[Start]
    hooked: Sequence[Hooked]
    findings: Sequence[Findings]


class Mark(NamedTuple):
    """Everything that what goes on depends on, at the moment when a process has opened the session and not yet acted.

    Ids, the clock and the agent follow from the number of the process; what models were asked is compared, not hashed.
    """

    left: Hashable
    asked: Sequence[Asked]
    starts: int
    hooked: int
    findings: int


class Endings:
    """The endings of histories that were played and found right, by what they went on from."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Mark, Ending]]] = {}

    def mark(self, history: History[Any]) -> Mark | None:
        """Where a history is whose last process has just opened the session; None if its world cannot be compared."""
        fingerprint = getattr(history.world, "fingerprint", None)
        if fingerprint is None:
            return None
        witness = history.witness
        left = (
            len(history.lives),
            history.clock.now_ms(),
            history.findings[-1].left,
            tuple((tuple(each.calls.values()), *each.requests, *each.summaries) for each in history.findings),
            tuple(map(_start, witness.starts)),
            tuple(map(_hooked, witness.hooked)),
            frozenset(aborts_of(history)),
            fingerprint(),
        )
        return Mark(left, list(witness.asked), len(witness.starts), len(witness.hooked), len(history.findings))

    def find(self, mark: Mark) -> Ending | None:
        """The ending of a history that was there, if there was one."""
        for known, ending in self._known.get(mark.left, ()):
            if known.asked == mark.asked:
                return ending
        return None

    def add(self, mark: Mark, history: History[Any], lives: Sequence[Lived], ended: Ended) -> None:
        """A history that went on from ``mark`` was found right; ``lives`` are its processes from there on."""
        witness = history.witness
        starts, hooked = witness.starts[mark.starts :], witness.hooked[mark.hooked :]
        ending = Ending(ended, lives, starts, hooked, history.findings[mark.findings :])
        self._known.setdefault(mark.left, []).append((mark, ending))


def _start(start: Start) -> Hashable:
    told = start.life, start.tool, start.policy, start.call_id, start.attempt, start.recovered, start.key
    return (*told, start.operation_id, repr(start.arguments), start.ended, repr(start.value), repr(start.error))


def _hooked(hooked: Hooked) -> Hashable:
    told = hooked.life, hooked.point, hooked.name, hooked.call_id, hooked.ended
    return (*told, repr(hooked.info), repr(hooked.value), repr(hooked.error))
