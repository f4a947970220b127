"""The part of a call's idempotency key that says which of several calls alike it is; see ``ToolContext``.

Answers are given in the order of their path. Each is decoded once for all of its calls, and once more when it has
become an earlier one, however many there are before and behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agentlane.data import codec
from agentlane.data.approvals import arguments_digest
from agentlane.data.messages import ToolCallPart


class Alike(NamedTuple):
    """A call's tool, the digest of its arguments, and how many calls before it have the same of both."""

    name: str
    digest: str
    earlier: int


class CallKeys:
    """What is counted of the answers of one path; begun anew when it becomes another path."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._counted = 0
        self._last: tuple[str, list[tuple[str, str]]] = ("", [])

    def alike(self, answers: Sequence[tuple[str, bytes]], answer: str, index: int) -> Alike:
        """Of call ``index`` of ``answer``; ``answers`` are ids and encoded calls since the operation's input."""
        position = len(answers) - 1
        while answers[position][0] != answer:
            position -= 1
        if position < self._counted:
            self._counts.clear()
            self._counted = 0
        while self._counted < position:
            self._counts.update(_named(answers[self._counted][1]))
            self._counted += 1
        if self._last[0] != answer:
            self._last = (answer, _named(answers[position][1]))
        here = self._last[1]
        name, digest = here[index]
        return Alike(name, digest, self._counts[here[index]] + here[:index].count(here[index]))


def decoded(calls: bytes) -> tuple[ToolCallPart, ...]:
    """The calls of an answer as they are kept: as text, so that nobody can change them."""
    return codec.CALLS.decode(calls, "calls")


def _named(calls: bytes) -> list[tuple[str, str]]:
    return [(call.name, arguments_digest(call.arguments)) for call in decoded(calls)]
