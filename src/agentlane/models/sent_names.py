"""Names of tools and ids of calls as a provider takes them: short, of few characters, and unique in a request.

What a lane calls a tool, and what another provider called a call, may be longer or of other characters than this
provider takes; one name that it refuses would end the conversation. Names that it takes go as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

_TAKEN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_LENGTH = 8


class SentNames:
    """One request's names of tools, and the way back from an answer. ``sent`` gives the same for the same name."""

    def __init__(self, names: Iterable[str] = (), *, length_max: int = 64) -> None:
        self._length_max = length_max
        self._sent: dict[str, str] = {}
        self._given: dict[str, str] = {}
        given = list(names)
        for name in sorted(given, key=lambda name: fits(name, length_max), reverse=True):
            self.sent(name)  # those that fit first, so that nothing made up takes their place

    def sent(self, name: str) -> str:
        """The name that the provider is told."""
        known = self._sent.get(name)
        if known is not None:
            return known
        sent = sendable(name, self._length_max, empty="tool")
        while self._given.get(sent, name) != name:
            sent = _marked(sent, f"{sent} {name}", self._length_max)
        self._sent[name] = sent
        self._given[sent] = name
        return sent

    def given(self, sent: str) -> str:
        """The name that is meant by what the provider says."""
        return self._given.get(sent, sent)

    def chosen(self, choice: Any) -> Any:
        """A choice of tools, in whatever form a provider has for it, with the names that the provider is told."""
        if isinstance(choice, Mapping):
            found = {key: self.chosen(value) for key, value in choice.items()}
            name = found.get("name")
            return {**found, "name": self._sent.get(name, name)} if isinstance(name, str) else found
        return [self.chosen(each) for each in choice] if isinstance(choice, list | tuple) else choice


class SentIds:
    """One request's ids of calls: in the order in which they stand in it, each id of a call one of its own."""

    def __init__(self, *, length_max: int = 64) -> None:
        self._length_max = length_max
        self._used: set[str] = set()
        self._latest: dict[str, str] = {}

    def call(self, id: str) -> str:
        """The id that a call is sent with; one that came before gets another."""
        sent = sendable(id, self._length_max, empty="call")
        number = 1
        base = sent
        while sent in self._used:
            number += 1
            sent = _marked(base, f"{base} {id} {number}", self._length_max)
        self._used.add(sent)
        self._latest[id] = sent
        return sent

    def result(self, id: str) -> str:
        """The id that the result of the latest call with this id is sent with."""
        found = self._latest.get(id)
        return self.call(id) if found is None else found


def fits(name: str, length_max: int) -> bool:
    """Whether a provider takes the name as it is."""
    return 0 < len(name) <= length_max and _TAKEN.fullmatch(name) is not None


def sendable(name: str, length_max: int, *, empty: str) -> str:
    """The name if it fits, else one like it with a digest behind it; the same for the same name."""
    if fits(name, length_max):
        return name
    return _marked(_OTHER.sub("_", name).strip("_") or empty, name, length_max)


def _marked(name: str, of: str, length_max: int) -> str:
    digest = sha256(of.encode("utf-8", "replace")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: length_max - _DIGEST_LENGTH - 1]}_{digest}"
