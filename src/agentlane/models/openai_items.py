"""Which item of an answer of the Responses API an event is of, and which of them the whole answer lists.

By the API an item is known by its place in the output. Servers that speak it leave the place out, count it otherwise or
give every item the same; some change ids between events. An item that was taken for another would run a call twice, or
not at all, so place, ids and what was said are looked at together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from agentlane.models.answering import field, text_of


class Item:
    """One item; it is its own key among the parts of the answer."""

    __slots__ = ("contents", "id", "place", "said", "whole")

    def __init__(self, place: object, id: str, said: Any) -> None:
        self.place = place if type(place) is int else None
        self.id = id
        self.said = said
        """What the provider said of it last."""
        self.whole = False
        self.contents: list[int] = []
        """The numbers of its texts that have begun."""

    @property
    def type(self) -> str:
        """The API's word for what it is."""
        return text_of(field(self.said, "type"))


_Same: TypeAlias = Callable[[Item, int, Any], bool]


class Items:
    """The items of one answer, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[Item] = []

    def begin(self, place: object, said: Any) -> Item:
        """The item that begins, unless it has begun."""
        id = text_of(field(said, "id"))
        for item in self.all:
            if not item.whole and _same_place(item, place) and item.id == id and (id or item.place is not None):
                item.said = said
                return item
        return self._new(place, id, said)

    def of(self, place: object, id: str, type: str) -> Item:
        """The item that an event is of; a new one if none can be meant."""
        last = self.all[-1] if self.all else None
        if last is not None and not last.whole and last.id == id and last.place == place:
            return last
        placed = [item for item in reversed(self.all) if _same_place(item, place)]
        named = (item for item in placed if id and item.id == id)
        opened = (item for item in placed if not item.whole)
        again = (item for item in placed if item.place is not None and item.place == place and not (id and item.id))
        found = next(named, None) or next(opened, None) or next(again, None)
        return found if found is not None else self._new(place, id, {"type": type})

    def listed(self, output: Sequence[Any]) -> list[tuple[Item, Any]]:
        """Each item that the whole answer lists, with the one that was streamed; a new one where none was."""
        left = list(self.all)
        found: dict[int, Item] = {}
        for same in (_by_id, _by_call, _by_text, _by_place):
            _pair(output, left, found, same)
        for type in {text_of(field(said, "type")) for said in output}:
            streamed = [item for item in left if item.type == type]
            missing = [n for n, said in enumerate(output) if n not in found and field(said, "type") == type]
            alike = streamed if len(streamed) == len(missing) else [item for item in streamed if not item.whole]
            found.update(zip(missing, alike, strict=False))
        return [
            (found.get(n) or self._new(None, text_of(field(said, "id")), said), said) for n, said in enumerate(output)
        ]

    def _new(self, place: object, id: str, said: Any) -> Item:
        item = Item(place, id, said)
        self.all.append(item)
        return item


def _pair(output: Sequence[Any], left: list[Item], found: dict[int, Item], same: _Same) -> None:
    for n, said in enumerate(output):
        if n not in found:
            item = next((item for item in left if item.type == field(said, "type") and same(item, n, said)), None)
            if item is not None:
                left.remove(item)
                found[n] = item


def _same_place(item: Item, place: object) -> bool:
    return type(place) is not int or item.place in (place, None)


def _by_id(item: Item, n: int, said: Any) -> bool:
    return bool(item.id) and item.id == field(said, "id")


def _by_call(item: Item, n: int, said: Any) -> bool:
    id = field(item.said, "call_id")
    return bool(id) and id == field(said, "call_id")


def _by_text(item: Item, n: int, said: Any) -> bool:
    return item.whole and _text(item.said) is not None and _text(item.said) == _text(said)


def _by_place(item: Item, n: int, said: Any) -> bool:
    return item.place == n


def _text(said: Any) -> object:
    match field(said, "type"):
        case "function_call":
            return field(said, "name"), field(said, "arguments")
        case "message":
            return [field(part, "text") or field(part, "refusal") for part in field(said, "content") or ()]
        case _:
            return None
