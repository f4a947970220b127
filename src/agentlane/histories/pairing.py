"""Gives each call of a history its one result: those that are missing are made, those without a call are kept aside.

Rules
- A result belongs to a call with its id that has none: of the newest answer before it, and there the first. One of the
  older form, which has no id, belongs to the call with its name that has none.
- Results are placed right behind their answer, in the order of its calls, under the names of these.
- A call without a result gets an error that says so. A result without its call, and a second one, becomes no message:
  what a tool said must not speak as anybody else. It is kept verbatim in a custom entry at its place.
- Answers that ended in an error or an abort never ran their calls, so these get no results. # I5
- What has no place in a message is kept in one custom entry behind the message, or the answer with its results.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentlane.data.border import clean_json
from agentlane.data.entries import Custom, EntryBody
from agentlane.data.messages import TextPart, ToolResultMessage
from agentlane.errors import InvalidMessage
from agentlane.histories.findings import KEPT
from agentlane.histories.reading import Answered, Kept, Reading, Returned, Said
from agentlane.ids import CALLS_MAX

MISSING = "The result of this call is not in the history that was imported. It may have run."


class _Batch:
    """The calls of one answer and the results that were found for them."""

    def __init__(self, answer: Answered) -> None:
        self.answer = answer
        self.calls = answer.message.calls
        self.results: list[Returned | None] = [None] * len(self.calls)
        self.last = -1
        """The last of its calls that has a result."""


class _Matching:
    """One walk over the items of a reading, with the calls that wait for their results."""

    def __init__(self, reading: Reading) -> None:
        self.batches: dict[int, _Batch] = {}
        """The batches, by the place of their answers among the items."""
        self.orphans: set[int] = set()
        """The places of results without a call."""
        self._reading = reading
        self._waiting: dict[tuple[str, str], list[tuple[_Batch, int]]] = {}
        self._used: set[str] = set()
        self._newest: _Batch | None = None
        """The batch that nothing but results has come behind."""
        for place, item in enumerate(reading.items):
            if isinstance(item, Answered):
                self._answer(place, item)
            elif isinstance(item, Said):
                self._newest = None
            elif isinstance(item, Returned):
                self._result(place, item)

    def _answer(self, place: int, item: Answered) -> None:
        self._check_ids(item)
        self._newest = None
        if item.message.stop_reason in ("error", "aborted") or not item.message.calls:
            return
        batch = self._newest = self.batches[place] = _Batch(item)
        for index in reversed(range(len(batch.calls))):  # the first call of the newest answer is taken first
            call = batch.calls[index]
            for key in (("id", call.id), ("name", call.name)):
                self._waiting.setdefault(key, []).append((batch, index))

    def _result(self, place: int, item: Returned) -> None:
        found = self._take(item)
        if found is None:
            self.orphans.add(place)
            which = f"named {item.name!r:.60}" if item.call_id is None else f"with the id {item.call_id!r:.60}"
            text = f"no call {which} waits for this result; it becomes no message, and is kept beside the conversation"
            self._reading.found(item.index, item.path, "orphan_result", text)
            return
        batch, index = found
        batch.results[index] = item
        path = batch.answer.places[index]
        if batch is not self._newest:
            text = f"this result comes later than right behind its call at {path}; it is placed there"
            self._reading.found(item.index, item.path, "late_result", text)
        elif index < batch.last:
            text = f"this result of {path} comes after that of a later call; it is placed before it"
            self._reading.found(item.index, item.path, "result_order", text)
        batch.last = max(batch.last, index)
        call = batch.calls[index]
        if item.name is not None and item.name != call.name:
            text = f"this result says {item.name!r:.60} and its call is one of {call.name!r:.60}; it goes under that"
            self._reading.found(item.index, item.path, "result_name", text)

    def _take(self, item: Returned) -> tuple[_Batch, int] | None:
        key = ("name", item.name or "") if item.call_id is None else ("id", item.call_id)
        waiting = self._waiting.get(key, [])
        while waiting:
            batch, index = waiting.pop()
            if batch.results[index] is None:
                return batch, index
        return None

    def _check_ids(self, item: Answered) -> None:
        calls = item.message.calls
        if len(calls) > CALLS_MAX:
            path = f"messages[{item.index}]"
            raise InvalidMessage(f"{path}: {len(calls)} calls; at most {CALLS_MAX} are taken", path=path)
        for call, path in zip(calls, item.places, strict=True):
            if not call.id:
                text = "the call has no id; a request that repeats it will have one"
                self._reading.found(item.index, path, "empty_call_id", text)
            elif call.id in self._used:
                text = f"the id {call.id!r:.60} was that of an earlier call too; a request will have it with a number"
                self._reading.found(item.index, path, "repeated_call_id", text)
            self._used.add(call.id)


def paired(reading: Reading) -> tuple[EntryBody, ...]:
    """The bodies of the entries that a reading becomes; what had to be done is added to its findings."""
    reading.items.sort(key=lambda item: (item.index, isinstance(item, Kept)))
    matching = _Matching(reading)
    return tuple(_placed(reading, matching.batches, matching.orphans))


def _placed(reading: Reading, batches: dict[int, _Batch], orphans: set[int]) -> Iterator[EntryBody]:
    kept: list[dict[str, object]] = []
    for place, item in enumerate(reading.items):
        if isinstance(item, Kept):
            kept.append({"index": item.index, "path": item.path, "value": item.value})
        elif isinstance(item, Returned):
            if place in orphans:
                kept.append({"index": item.index, "path": item.path, "value": clean_json(dict(item.given), item.path)})
        else:
            yield from _flushed(reading, kept)
            yield item.message
            if place in batches:
                yield from _results(reading, batches[place])
    yield from _flushed(reading, kept)


def _flushed(reading: Reading, kept: list[dict[str, object]]) -> Iterator[EntryBody]:
    if kept:
        yield Custom(type=KEPT, data={"format": reading.format, "kept": list(kept)})
        kept.clear()


def _results(reading: Reading, batch: _Batch) -> Iterator[ToolResultMessage]:
    for call, result, path in zip(batch.calls, batch.results, batch.answer.places, strict=True):
        if result is None:
            text = "there is no result for this call; one that says so is placed, as an error"
            reading.found(batch.answer.index, path, "missing_result", text)
            yield ToolResultMessage(call_id=call.id, name=call.name, content=(TextPart(text=MISSING),), is_error=True)
        else:
            yield ToolResultMessage(
                call_id=call.id,
                name=call.name,
                content=result.content,
                details=result.details,
                is_error=result.is_error,
                sent_at=result.sent_at,
            )
