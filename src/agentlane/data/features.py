"""Features that came after the first format: which of them a session uses says what version may write it.

An older version refuses a tag that it does not know, and *loses* a field that it does not know when it writes the
record anew. So the commit that first uses what came with a feature also marks the session with it, and a version that
does not know the mark reads the session, and writes none of it. Without such a feature nothing is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct

from agentlane.data import addresses, codec
from agentlane.data.writes import InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import UnsupportedFormat


class Feature(NamedTuple):
    """A tag, an address or a field, or several that belong together: the first version that has it, and which writes
    use it."""

    name: str
    since: str
    uses: Callable[[Write], bool]


_SUMMARIES = frozenset(("compaction", "branch_summary"))
_STATES = (
    *(b'{"at":"summarizing"', b'{"at":"summary_wait"', b'{"at":"navigating"'),
    *(b'{"at":"checkpoint","next":"summarize"', b'{"at":"checkpoint","next":"end"'),
)
"""How states of an operation begin that came with summaries: the tag comes first, then the first field."""
_POLICY = b'"compaction":'
_OF_SUMMARIES = frozenset((addresses.OP_STATE, addresses.OP_CONFIG, addresses.OP_PREP))


def _makes_summaries(write: Write) -> bool:
    # Every commit of a session that is not marked is looked at with this: what is cheap to tell apart comes first.
    if type(write) is SetValue:
        (namespace, _), payload = write
        if namespace not in _OF_SUMMARIES:
            return False
        if namespace == addresses.OP_STATE:
            return payload.startswith(_STATES)
        if namespace == addresses.OP_PREP:
            return True
        # The settings of a model may say the same.
        return _POLICY in payload and codec.CONFIG.decode(payload, namespace).compaction is not UNSET
    if type(write) is InsertEntry:
        return write.kind in _SUMMARIES
    return type(write) is InsertUsage and write.row.kind == "summary"


FEATURES: Sequence[Feature] = (Feature("compaction", "0.1.0", _makes_summaries),)
"""Those that this version knows, oldest first. A name is never used again for something else."""


class FeatureMark(Struct, frozen=True, gc=False, kw_only=True):
    """``session.feature/{name}``: the session uses it; ``since`` is the oldest version that may write the session."""

    since: str


MARK = codec.Kind[FeatureMark](FeatureMark, "mark of a feature")


class Marks:
    """The marks of one open session."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._known: Sequence[Feature] | None = None
        self._new: Sequence[Feature] = ()
        """Those of ``_known`` that the session is not marked with."""

    def read(self, rows: Mapping[str, bytes]) -> None:
        """Take the marks as they are stored."""
        self._made = {name: MARK.decode(payload, f"feature {name}").since for name, payload in rows.items()}
        self._known = None

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

    def due(self, writes: Iterable[Write]) -> Sequence[Feature]:
        """Features that ``writes`` use and the session is not marked with."""
        if self._known is not FEATURES:
            self._known = FEATURES
            self._new = tuple(feature for feature in FEATURES if feature.name not in self._made)
        if not self._new:
            return ()
        return [feature for feature in self._new if any(map(feature.uses, writes))]

    def made(self, features: Iterable[Feature]) -> None:
        """The commit that has the marks of ``features`` is published."""
        self._made |= {feature.name: feature.since for feature in features}
        self._known = None


def mark(feature: Feature) -> Write:
    """The write that marks a session."""
    return SetValue(addresses.session_feature(feature.name), codec.encode(FeatureMark(since=feature.since)))


def _order(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]
