"""One planned fault: the n-th call fails, that one alone or with all later ones of its kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

TOLD_MAX = 4


class Kind(NamedTuple):
    """A way to fail: which calls it can befall, and what they say then."""

    name: str
    calls: tuple[str, ...]
    code: int
    """An ``errno`` for calls of the operating system, a result code of SQLite for its own."""
    part: bool = False
    """Half of it is done before it fails."""
    times_max: int = 1_000_000
    """How often at most, for what is tried again, with waits, by who meets it."""


class Faults:
    """Counts the calls that it is told of, and has the ``nth`` fail. May be told from any thread.

    How it fails is one of the ``kinds`` that can befall it, another one for each ``nth``. ``permanent``: all later
    calls that the same kind can befall fail too, until the cause is mended (``lift``).
    """

    def __init__(self, kinds: Sequence[Kind] = (), *, nth: int = 0, permanent: bool = False) -> None:
        self.calls: Counter[str] = Counter()
        self.struck: list[str] = []
        """The first calls that failed, and how."""
        self.raised: list[BaseException] = []
        """What those of the operating system raised."""
        self.raised_by: list[str] = []
        """And by which calls."""
        self.codes: set[int] = set()
        """What those of SQLite returned."""
        self._kinds = kinds
        self._nth = nth
        self._permanent = permanent
        self._kind: Kind | None = None
        self._seen = 0
        self._times = 0
        self._lifted = False
        self._lock = threading.Lock()

    def meet(self, call: str) -> Kind | None:
        """How this call fails, or None if it does not."""
        with self._lock:
            if self._lifted:
                return None
            self.calls[call] += 1
            self._seen += 1
            if self._seen == self._nth:
                possible = [each for each in self._kinds if call in each.calls]
                kind = self._kind = possible[self._nth % len(possible)]
            elif self._permanent and self._kind is not None and call in self._kind.calls:
                kind = self._kind
                if self._times >= kind.times_max:
                    return None
            else:
                return None
            self._times += 1
            if self._times <= TOLD_MAX:
                self.struck.append(f"{call}: {kind.name}")
            if call.startswith("db."):
                self.codes.add(kind.code)
            return kind

    def plan(self, kinds: Sequence[Kind], *, nth: int, permanent: bool) -> None:
        """From here on: the ``nth`` call from now fails, as one of these kinds; what was before is forgotten."""
        with self._lock:
            self._kinds, self._nth, self._permanent = kinds, nth, permanent
            self._kind, self._seen, self._times, self._lifted = None, 0, 0, False
            self.calls.clear()
            self.struck.clear()
            self.raised.clear()
            self.raised_by.clear()
            self.codes.clear()

    def lift(self) -> None:
        """The cause is mended: no call fails any more."""
        with self._lock:
            self._lifted = True

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What is called inside is the test's own look at things, and neither counted nor failed."""
        before, self._lifted = self._lifted, True
        try:
            yield
        finally:
            self._lifted = before
