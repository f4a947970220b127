"""The border rule: what foreign JSON-like data may hold, checked by our own walk, the same on every backend.

Lone surrogates become U+FFFD. NaN, infinities, integers beyond 64 bits, non-string keys, values that are not JSON
(bytes, sets, datetimes, objects) and nesting deeper than ``NESTING_MAX`` (so also cycles) are refused with the path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentlane.errors import InvalidMessage

NESTING_MAX = 64
NODES_MAX = 10_000_000
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1


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


def clean_json(value: Any, path: str = "$") -> Any:
    """A deep copy of ``value`` that obeys the border rule; raises ``InvalidMessage`` that names the path."""
    return _Walk().copy(value, path, 0)


class _Walk:
    """One walk over one value; counts nodes, so that a small value that unfolds without end is stopped."""

    def __init__(self) -> None:
        self._nodes = 0

    def copy(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() else clean_text(value, path)
        if value is None or kind is bool:
            return value
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise InvalidMessage(f"{path}: more than {NODES_MAX} values in one JSON value", path=path)
        if isinstance(value, int):
            if not INTEGER_MIN <= value <= INTEGER_MAX:
                raise InvalidMessage(
                    f"{path}: integer {_short(value)} does not fit in 64 bits; send it as text", path=path
                )
            return int(value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidMessage(f"{path}: {value!r} is not a JSON number; send null or text", path=path)
            return float(value)
        if isinstance(value, str):
            return clean_text(value, path)
        if isinstance(value, Mapping):
            self._check_depth(path, depth)
            return self._mapping(value, path, depth)
        if isinstance(value, list | tuple):
            self._check_depth(path, depth)
            return [self.copy(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        raise InvalidMessage(f"{path}: a {kind.__name__} is not JSON data; convert it first", path=path)

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidMessage(f"{path}: key {_short(key)} is not text", path=path)
            name = clean_text(key, path)
            if name in result:
                raise InvalidMessage(f"{path}: two keys become {name!r} once surrogates are replaced", path=path)
            result[name] = self.copy(item, f"{path}.{name}", depth + 1)
        return result

    def _check_depth(self, path: str, depth: int) -> None:
        if depth >= NESTING_MAX:
            raise InvalidMessage(f"{path[:200]}: nested deeper than {NESTING_MAX}, or a cycle", path=path[:200])


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # repr of foreign objects (and of huge integers) may raise anything
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
