"""What a caller may ask a read for: ids, limits and cursors, checked before any backend sees them. # I14"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from agentlane.errors import InvalidMessage

SEQ_MAX = 2**63 - 1
"""No sequence number, and no number of rows, is greater."""


def id_text(value: object) -> str | None:
    """``value`` as plain ``str`` if something could have it for its id; None for what is no text, or half of one."""
    if not isinstance(value, str):
        return None
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def page_limit(value: object) -> int | None:
    """A number of rows, or None for all of them; raises ``InvalidMessage`` for anything else."""
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise InvalidMessage(f"limit={value!r}: a whole number of at least 0, or None, is needed here", path="limit")
    return min(value, SEQ_MAX)


def cursor(value: object, name: str) -> int:
    """A sequence number to go on behind, which need not be anything's; ``InvalidMessage`` for what is no number."""
    if type(value) is not int:
        raise InvalidMessage(f"{name}={value!r}: a whole number is needed here", path=name)
    return max(-SEQ_MAX, min(value, SEQ_MAX))


def kinds_of(value: Any, known: Iterable[str], name: str) -> Collection[str] | None:
    """Kinds to look for, or None for all; ``InvalidMessage`` for one text, or for a kind that is not ``known``."""
    if value is None:
        return None
    known = tuple(known)
    way_out = f"give a list of {', '.join(known)}"
    if isinstance(value, str):
        raise InvalidMessage(f"{name}={value!r}: one text; {way_out}", path=name)
    try:
        kinds = tuple(value)
    except TypeError as error:
        raise InvalidMessage(f"{name}={value!r}: {way_out}", path=name) from error
    for kind in kinds:
        if kind not in known:
            raise InvalidMessage(f"{name}: {kind!r} is no kind of entry; {way_out}", path=name)
    return tuple(known[known.index(kind)] for kind in kinds)
