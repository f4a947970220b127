"""Formats that follow each other: how what an older version wrote becomes what this one writes.

A *chain* is a step from each format to the next. The rules that every step keeps:

- about the layout: entries, ledger, values and lists are what they were, byte for byte. What records say evolves by
  defaults, and by features (``agentlane.data.features``);
- total: it takes every valid file of its format, operations open in any state included, and loses nothing of it;
- one change: whenever it is killed, or fails, the file is a whole one of its own format or of the next;
- idempotent: run again after that, it ends where it would have ended;
- for ever: a step is not changed once a file may have gone through it; files of each format are frozen in the tests.

Steps are run by the owner of a file, under its lock, before it is first used for writing. Who only reads an older file
leaves it as it is, and reads it as what it is. A file of a newer format is refused, and not a byte of it is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Step(NamedTuple, Generic[S]):
    """From format ``since`` to the next: ``change`` is what is done, and ``why`` what it is good for."""

    since: int
    why: str
    change: S


def migrated(path: object, found: int, newest: int) -> str:
    """What people are told when the file at ``path`` has come from format ``found`` to ``newest``."""
    return (
        f"{path} was written by an older version, and was migrated from format {found} to {newest}: versions that know "
        f"up to {newest - 1} can no longer open it"
    )


class Chain(Generic[S]):
    """The steps from the oldest format there was to ``newest``, the one that this version writes."""

    def __init__(self, *steps: Step[S], newest: int) -> None:
        """``ValueError`` unless each step begins where the one before ends, and the last ends at ``newest``."""
        wanted = list(range(newest - len(steps), newest))
        if [step.since for step in steps] != wanted:
            raise ValueError(f"steps from {[step.since for step in steps]}: steps from {wanted} lead to {newest}")
        self.steps: Sequence[Step[S]] = steps
        self.newest = newest

    @property
    def oldest(self) -> int:
        """The oldest format that can be read."""
        return self.newest - len(self.steps)

    def step_from(self, found: int) -> Step[S] | None:
        """The step that is due for a file of format ``found``; None if it is of the newest."""
        if found == self.newest:
            return None
        if not self.oldest <= found < self.newest:
            raise ValueError(f"format {found}: there is no step from it to {self.newest}")
        return self.steps[found - self.oldest]

    def due(self, found: int) -> Iterator[Step[S]]:
        """Every step that a file of format ``found`` still has to go through."""
        while (step := self.step_from(found)) is not None:
            yield step
            found += 1
