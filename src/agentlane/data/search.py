"""What a search is: its words and filters, the text that an entry has for it, how well an entry matches, a snippet.

All of it is pure, and every backend uses it: which entries are found, in which order and with which snippets does not
depend on where a session is kept. # I14

The **score** of an entry with ``L`` words, ``n`` of which are a word that is looked for, is the mean over those words
of ``100 n / (100 n + 50 + L)``: between 0 and 1, more for a word that comes often, less where there is much else. It
depends on nothing but the entry, so that neither other branches nor other sessions can move it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from agentlane.data import codec
from agentlane.data.entries import KINDS, MESSAGES, BranchSummary, Compaction, Custom, EntryBody
from agentlane.data.messages import AssistantMessage, TextPart
from agentlane.data.reads import SEQ_MAX, kinds_of
from agentlane.data.words import WORDING, placed_words, wanted_words, words_of
from agentlane.errors import AgentLaneError, InvalidMessage

HITS_MAX = 1_000
"""The greatest ``limit``."""
WORDS_MAX = 64
"""Only so many different words of what is looked for count."""
TEXT_CHARS_MAX = 1_000_000
"""Only so much of an entry's text is searched."""
SNIPPET_CHARS = 160
"""About as long is a snippet."""
SHARE = 1_000_000
"""What one word can add to a total, never quite reached: totals are whole numbers, the same wherever they are made."""
TEXTING = f"1/{TEXT_CHARS_MAX}/{WORDING}"
"""What an index must have been made with to be of use: which text entries have, and which words texts."""
_BEFORE_CHARS = 40


class Wanted(NamedTuple):
    """One word that is looked for; ``prefix``: any that begins so will do."""

    word: str
    prefix: bool


class Search(Struct, frozen=True, kw_only=True):
    """What is looked for, checked: every word must be in an entry, and every filter must let it through."""

    words: tuple[Wanted, ...]
    kinds: tuple[str, ...] | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 20

    @property
    def finds_nothing(self) -> bool:
        """Whether it needs no look at any entry to know that there is no hit."""
        return not self.words or not self.limit or self.kinds == ()

    def lets_through(self, kind: str, at: int) -> bool:
        """Whether an entry of this kind and time may be a hit."""
        if self.kinds is not None and kind not in self.kinds:
            return False
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


class SearchHit(Struct, frozen=True, kw_only=True):
    """An entry that a search found."""

    entry_id: str
    session_id: str
    type: str
    """``message``, ``custom``, ``compaction`` or ``branch_summary``, as ``Entry.type``."""
    role: str | None
    """Whose message it is: ``user``, ``assistant`` or ``tool_result``; None for what is no message."""
    at: int
    """When it was written, in milliseconds since 1970."""
    snippet: str
    """A piece of the entry's text around what was found, on one line; a cut is marked by an ellipsis."""
    marks: tuple[tuple[int, int], ...]
    """Where in the snippet the words are that were found: first character, and the one behind the last."""
    score: float
    """How well it matches, between 0 and 1; see ``docs/how-to/search-a-session.md``."""


def checked_search(
    text: object, *, types: Any, since: object, until: object, limit: object, prefix: object = False
) -> Search:
    """What a caller asks for; ``InvalidMessage`` for what is no text, kind of entry, time or number of hits.

    Any text may be looked for: what is no word in it parts words and does nothing else.
    """
    if not isinstance(text, str):
        raise InvalidMessage(f"text: a text is needed here, not {type(text).__name__}", path="text")
    if type(prefix) is not bool:
        raise InvalidMessage(f"prefix={prefix!r}: True or False is needed here", path="prefix")
    if type(limit) is not int or not 0 <= limit <= HITS_MAX:
        raise InvalidMessage(f"limit={limit!r}: a whole number from 0 to {HITS_MAX} is needed here", path="limit")
    kinds = kinds_of(types, KINDS, "types")
    words = wanted_words(str.__str__(text))[:WORDS_MAX]
    return Search(
        words=tuple(Wanted(word, prefix and i == len(words) - 1) for i, word in enumerate(words)),
        kinds=None if kinds is None else tuple(dict.fromkeys(kinds)),
        since=_time(since, "since"),
        until=_time(until, "until"),
        limit=limit,
    )


def _time(value: object, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int:
        raise InvalidMessage(f"{name}={value!r}: milliseconds since 1970 as a whole number, or None", path=name)
    return max(-SEQ_MAX, min(value, SEQ_MAX))


# What is in an entry.


def text_of(payload: bytes) -> str:
    """The text that a stored entry is searched by; empty where it has none, or cannot be read."""
    try:
        body = codec.BODY.decode(payload, "entry")
    except AgentLaneError:
        return ""
    return "\n".join(_texts(body))[:TEXT_CHARS_MAX]


def _texts(body: EntryBody) -> Iterable[str]:
    if isinstance(body, Custom):
        return _leaves(body.data)
    if isinstance(body, Compaction | BranchSummary):
        return (body.summary,)
    if isinstance(body, AssistantMessage):
        return (part.text for part in body.content if type(part) is TextPart)
    return (part.text for part in body.content if type(part) is TextPart)


def _leaves(data: Any) -> Iterator[str]:
    """Every text in JSON data that is no key, in its order."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += reversed(item.values())
        elif isinstance(item, list):
            waiting += reversed(item)


# How well it matches.


def total_of(search: Search, payload: bytes) -> int:
    """The sum over the wanted words of their shares in a stored entry; 0 if one of them is not there."""
    if not _may_match(search, payload):
        return 0
    words = words_of(text_of(payload))
    total = 0
    for wanted in search.words:
        if wanted.prefix:
            count = sum(word.startswith(wanted.word) for word in words)
        else:
            count = words.count(wanted.word)
        if not count:
            return 0
        total += 100 * SHARE * count // (100 * count + 50 + len(words))
    return total


def score_of(search: Search, total: int) -> float:
    """A total as people are shown it."""
    return total / (SHARE * len(search.words))


def _may_match(search: Search, payload: bytes) -> bool:
    """False if a look at the bytes is enough to know that a word is missing: no accents, nothing escaped."""
    if not payload.isascii() or b"\\u" in payload:
        return True
    text = payload.lower()
    return all(wanted.word.isascii() and wanted.word.encode() in text for wanted in search.words)


# What is shown of it.


def hit_of(
    search: Search, *, session_id: str, entry_id: str, kind: str, at: int, payload: bytes, total: int
) -> SearchHit:
    """A hit as it is given out, from its stored entry."""
    snippet, marks = snippet_of(search, text_of(payload))
    message = kind in MESSAGES
    return SearchHit(
        entry_id=entry_id,
        session_id=session_id,
        type="message" if message else kind,
        role=kind if message else None,
        at=at,
        snippet=snippet,
        marks=marks,
        score=score_of(search, total),
    )


def snippet_of(search: Search, text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The first piece of ``text`` that holds the most of the different wanted words, and where in it they are."""
    found = [(start, end, number) for word, start, end in placed_words(text) for number in _which(search, word)]
    start = _best_start(found)
    end = min(len(text), start + SNIPPET_CHARS)
    if start > 0:
        start = _after_space(text, start)
    if end < len(text):
        end = _before_space(text, end, max((last for _, last, _ in found if last <= end), default=0))
    spans = _merged((max(first, start), min(last, end)) for first, last, _ in found if first < end and last > start)
    shift = (1 if start > 0 else 0) - start
    piece = "".join(" " if char.isspace() or _is_control(char) else char for char in text[start:end])
    shown = f"{'…' if start > 0 else ''}{piece}{'…' if end < len(text) else ''}"
    return shown, tuple((first + shift, last + shift) for first, last in spans)


def _which(search: Search, word: str) -> Iterator[int]:
    for number, wanted in enumerate(search.words):
        if word == wanted.word or (wanted.prefix and word.startswith(wanted.word)):
            yield number


def _best_start(found: list[tuple[int, int, int]]) -> int:
    """Where a snippet begins: some way before the first of the places that have most different words behind them."""
    best, best_start = 0, 0
    counts: dict[int, int] = {}
    last = 0
    for first, (start, _, number) in enumerate(found):
        while last < len(found) and found[last][1] <= start + SNIPPET_CHARS - _BEFORE_CHARS:
            counts[found[last][2]] = counts.get(found[last][2], 0) + 1
            last += 1
        if len(counts) > best:
            best, best_start = len(counts), start
        if first < last:
            counts[number] -= 1
            if not counts[number]:
                del counts[number]
        else:
            last = first + 1  # a word longer than a snippet
    return max(0, best_start - _BEFORE_CHARS)


def _after_space(text: str, start: int) -> int:
    """Where the next word begins, if one does soon."""
    for place in range(start, min(start + _BEFORE_CHARS // 2, len(text))):
        if text[place - 1].isspace():
            return place
    return start


def _before_space(text: str, end: int, least: int) -> int:
    """Where the last whole word ends, if one does shortly before, and not before ``least``."""
    for place in range(end, max(least, end - _BEFORE_CHARS // 2) - 1, -1):
        if text[place].isspace():
            return place
    return end


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char < "\xa0"


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that touch or lie over each other made one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(set(spans)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
