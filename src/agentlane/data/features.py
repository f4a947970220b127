"""Features that came after the first format: which of them a session uses says what version may write it.

An older version refuses a tag that it does not know, and *loses* a field that it does not know when it writes the
record anew. So the commit that first uses what came with a feature also marks the session with it, and a version that
does not know the mark reads the session, and writes none of it. Without such a feature nothing is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from agentlane.data import addresses, codec
from agentlane.data.writes import SetValue, Write
from agentlane.errors import UnsupportedFormat


class Feature(NamedTuple):
    """A tag, an address or a field, or several that belong together: the first version that has it, and which writes
    use it."""

    name: str
    since: str
    uses: Callable[[Write], bool]


FEATURES: Sequence[Feature] = ()
"""Those that this version knows, oldest first; none yet. A name is never used again for something else."""


class FeatureMark(Struct, frozen=True, gc=False, kw_only=True):
    """``session.feature/{name}``: the session uses it; ``since`` is the oldest version that may write the session."""

    since: str


MARK = codec.Kind[FeatureMark](FeatureMark, "mark of a feature")


class Marks:
    """The marks of one open session."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def read(self, rows: Mapping[str, bytes]) -> None:
        """Take the marks as they are stored."""
        self._made = {name: MARK.decode(payload, f"feature {name}").since for name, payload in rows.items()}

    def check_writable(self, session_id: str) -> None:
        """``UnsupportedFormat`` if the session uses what this version does not know: it may read it, not write it."""
        known = {feature.name for feature in FEATURES}
        unknown = {name: since for name, since in self._made.items() if name not in known}
        if unknown:
            needed = max(unknown.values(), key=_order)
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(
                f"session {session_id!r} uses {names}, which this version of agentlane does not know: version {needed} "
                "or newer may write it; update, or open it with read_only=True",
                features=sorted(unknown),
                needed=needed,
            )

    def due(self, writes: Iterable[Write]) -> list[Feature]:
        """Features that ``writes`` use and the session is not marked with."""
        new = [feature for feature in FEATURES if feature.name not in self._made]
        return [feature for feature in new if any(feature.uses(write) for write in writes)]

    def made(self, features: Iterable[Feature]) -> None:
        """The commit that has the marks of ``features`` is published."""
        self._made |= {feature.name: feature.since for feature in features}


def mark(feature: Feature) -> Write:
    """The write that marks a session."""
    return SetValue(addresses.session_feature(feature.name), codec.encode(FeatureMark(since=feature.since)))


def _order(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]
