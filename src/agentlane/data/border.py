"""The border rule: what foreign JSON-like data may hold, checked by our own walk, the same on every backend.

Lone surrogates become U+FFFD. NaN, infinities, integers beyond 64 bits, non-string keys, values that are not JSON
(bytes, sets, datetimes, objects) and nesting deeper than ``NESTING_MAX`` (so also cycles) are refused with the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentlane.errors import InvalidMessage

NESTING_MAX = 64
NODES_MAX = 1_000_000
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1
PATH_LENGTH_MAX = 200


def clean_text(text: str, path: str = "$") -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD; anything but text is refused."""
    if type(text) is not str:
        if not isinstance(text, str):
            raise InvalidMessage(f"{path}: text is needed here, not {type(text).__name__}", path=path)
        text = str.__str__(text)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any, path: str = "$", *, records: Callable[[Any], Any] | None = None) -> Any:
    """A deep copy of ``value`` that obeys the border rule; raises ``InvalidMessage`` that names the path.

    ``records`` is asked about each object that is not JSON data; what it gives in its place is looked at as the rest
    is, and the object itself (or one of its type) is refused.
    """
    try:
        return _Walk(records).copy(value, 0)
    except _Refused as refused:
        place = path + "".join(reversed(refused.steps))
        if len(place) > PATH_LENGTH_MAX:
            place = place[:PATH_LENGTH_MAX] + "..."
        raise InvalidMessage(f"{place}: {refused.why}", path=place) from refused.__cause__


def clean_object(value: object, path: str) -> dict[str, Any]:
    """A deep copy of a JSON object that obeys the border rule; anything but a mapping is refused with the path too."""
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"{path}: an object is needed here, not {type(value).__name__}", path=path)
    clean: dict[str, Any] = clean_json(value, path)
    return clean


def copied(value: Any) -> Any:
    """A copy of JSON data that is known to obey the border rule."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


class _Refused(Exception):
    """What is wrong, and the steps of the path to it, innermost first: added on the way out, so they cost nothing."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.steps: list[str] = []


class _Walk:
    """One walk over one value; counts nodes, so that a small value that unfolds without end is stopped."""

    def __init__(self, records: Callable[[Any], Any] | None) -> None:
        self._nodes = 0
        self._records = records

    def copy(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise _Refused(f"more than {NODES_MAX} values in one JSON value")
        kind = type(value)
        if kind is str:
            return value if value.isascii() else clean_text(value)
        if value is None or kind is bool:
            return value
        if kind is dict:
            return self._mapping(value, depth)
        if kind is list:
            return self._sequence(value, depth)
        try:
            return self._other(value, depth)
        except (_Refused, InvalidMessage):
            raise
        except Exception as error:  # a foreign class may answer the simplest question with anything
            raise _Refused(f"reading it failed: {_said(error)}") from error

    def _other(self, value: Any, depth: int) -> Any:
        """What is not exactly text, an object or an array. Overridden methods of numbers and texts are not asked."""
        if isinstance(value, int):
            whole = int.__pos__(value)
            if not INTEGER_MIN <= whole <= INTEGER_MAX:
                raise _Refused(f"integer {_short(whole)} does not fit in 64 bits; send it as text")
            return whole
        if isinstance(value, float):
            number = float.__pos__(value)
            if not math.isfinite(number):
                raise _Refused(f"{number!r} is not a JSON number; send null or text")
            return number
        if isinstance(value, str):
            return clean_text(value)
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple):
            return self._sequence(value, depth)
        if self._records is not None:
            plain = self._records(value)
            if type(plain) is not type(value):
                return self.copy(plain, depth)
        raise _Refused(f"a {type(value).__name__} is not JSON data; convert it first")

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        _check_depth(depth)
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _Refused(f"key {_short(key)} is not text")
            name = clean_text(key)
            if name in result:
                raise _Refused(f"two keys become {_short(name)} once surrogates are replaced")
            try:
                result[name] = self.copy(item, depth + 1)
            except _Refused as refused:
                refused.steps.append(f".{name}")
                raise
        return result

    def _sequence(self, value: Iterable[Any], depth: int) -> list[Any]:
        _check_depth(depth)
        result: list[Any] = []
        try:
            for item in value:
                result.append(self.copy(item, depth + 1))  # the length so far is the place of a refusal
        except _Refused as refused:
            refused.steps.append(f"[{len(result)}]")
            raise
        return result


def _check_depth(depth: int) -> None:
    if depth >= NESTING_MAX:
        raise _Refused(f"nested deeper than {NESTING_MAX}, or a cycle")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # repr of foreign objects (and of huge integers) may raise anything
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # foreign exceptions may fail to print themselves
        return type(error).__name__
