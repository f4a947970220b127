"""Claim: names, labels, values, lists and the ledger hold what was given, on every backend, across reopens."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from typing import Any

import pytest
from msgspec import Struct

from agentlane import ListAddress, Stats, Usage, ValueAddress
from agentlane.errors import CorruptSession, InvalidDefinition, InvalidMessage, InvalidName, UnknownEntry
from tests.session.places import Place, agent_of


class Note(Struct, frozen=True):
    text: str
    tags: list[str] = []


NOTE = ValueAddress("app.notes", "first", Note)
ANY: ValueAddress[Any] = ValueAddress("app.any", "x", Any)  # type: ignore[arg-type]
LOG = ListAddress("app.log", "l", Note)


async def test_a_value_is_what_was_set_last_until_it_is_deleted(place: Place) -> None:
    session = await place.open()
    assert await session.value(NOTE) is None and await session.value(NOTE, Note("none")) == Note("none")

    await session.set_value(NOTE, Note("a"))
    await session.set_value(NOTE, Note("b", ["x"]))
    assert await session.value(NOTE) == Note("b", ["x"])
    await session.close()
    session = await place.open()
    assert await session.value(NOTE) == Note("b", ["x"])
    await session.delete_value(NOTE)
    await session.delete_value(NOTE)
    assert await session.value(NOTE) is None


async def test_values_of_a_namespace_are_found_by_prefix(place: Place) -> None:
    session = await place.open()
    for key in ("b:2", "a:1", "b:1", "c"):
        await session.set_value(ValueAddress("app.n", key, str), key.upper())
    await session.set_value(ValueAddress("app.other", "b:1", str), "no")

    assert await session.values("app.n", str, prefix="b:") == {"b:1": "B:1", "b:2": "B:2"}
    assert list(await session.values("app.n", str)) == ["a:1", "b:1", "b:2", "c"]
    assert await session.values("app.n", str, prefix="%") == {} == await session.values("app.none", str)
    with pytest.raises(InvalidName):
        await session.values("op.state", object)


@pytest.mark.parametrize(
    "value",
    ["", "a\x00b", "\u2028\x85\r\n", "현 😀", {"": {"k\x00": [1, None, True]}}, 2**64 - 1, -(2**63), 0.1, [], None],
    ids=ascii,
)
async def test_json_data_round_trips(value: Any, place: Place) -> None:
    session = await place.open()

    await session.set_value(ANY, value)
    await session.close()
    session = await place.open()

    assert await session.value(ANY, "default") == value


async def test_lone_surrogates_are_replaced_in_values_and_keys_of_them(place: Place) -> None:
    session = await place.open()

    await session.set_value(ANY, {"현\ud99c": ["\udc00"]})

    assert await session.value(ANY) == {"현\ufffd": ["\ufffd"]}


@pytest.mark.parametrize(
    ("address", "value", "why"),
    [
        (ValueAddress("app.a", "k", dict), {"x": float("nan")}, "value.x: nan is not"),
        (ValueAddress("app.a", "k", dict), {1: 2}, "value: key 1 is not text"),
        (ValueAddress("app.a", "k", bytes), b"raw", "value: a bytes is not JSON data"),
        (ValueAddress("app.a", "k", int), "five", "value: Expected `int`, got `str`"),
        (NOTE, {"tags": []}, "value: Object missing required field `text`"),
        (NOTE, Note(text=5), "value: Expected `str`, got `int` - at `$.text`"),  # type: ignore[arg-type]
        (NOTE, Note("x", [object()]), "value: "),  # type: ignore[list-item]
    ],
    ids=["nan", "key", "bytes", "type", "field", "wrong record", "object"],
)
async def test_a_value_that_could_not_be_read_back_is_refused(
    address: ValueAddress[Any], value: Any, why: str, memory: Place
) -> None:
    session = await memory.open()
    elements = ListAddress(address.address.namespace, address.address.key, address.type)

    for attempt in (session.set_value(address, value), session.append(elements, value)):
        with pytest.raises(InvalidMessage) as caught:
            await attempt
        assert str(caught.value).startswith(why)

    assert await session.value(address) is None and await session.elements(elements) == []


class Rank(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Visit:
    at: datetime.datetime
    notes: list[Note] = dataclasses.field(default_factory=list)


WHEN = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (list[Note], [Note("a"), Note("b", ["x"])]),
        (dict[str, list[Note]], {"k": [Note("a")], "empty": []}),
        (tuple[int, Note], (1, Note("a"))),
        (Rank, Rank.HIGH),
        (dict[str, Rank], {"a": Rank.LOW}),
        (Visit, Visit(WHEN, [Note("a")])),
        (list[Visit], [Visit(WHEN)]),
        (Note | None, None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_records_may_stand_anywhere_in_a_value_as_its_type_says(type_: Any, value: Any, memory: Place) -> None:
    session = await memory.open()
    address, elements = ValueAddress("app.a", "k", type_), ListAddress("app.a", "k", type_)

    await session.set_value(address, value)
    seq = await session.append(elements, value)

    assert await session.value(address) == value and await session.elements(elements) == [(seq, value)]
    assert await session.values("app.a", type_) == {"k": value}


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        (list[Note], [Note("a"), Note("b", [math.nan])], "value[1].tags[0]: nan is not"),  # type: ignore[list-item]
        (list[Note], [Note("a"), Note(5)], "value: Expected `str`, got `int` - at `$[1].text`"),  # type: ignore[arg-type]
        (list[Note], [Note("a"), Note("b", [object()])], "value[1]: reading it failed: TypeError"),  # type: ignore[list-item]
        (list[int], [Note("a")], "value: Expected `int`, got `object`"),
        (list[Any], [{"a": {1, 2}}], "value[0].a: a set is not JSON data"),
        (datetime.datetime, WHEN, "value: a datetime is not JSON data"),
        (list[Note], [Note], "value[0]: a StructMeta is not JSON data"),
    ],
    ids=["nan", "wrong record", "object", "another type", "set", "datetime", "class"],
)
async def test_records_within_a_value_obey_the_border_too(type_: Any, value: Any, why: str, memory: Place) -> None:
    session = await memory.open()

    with pytest.raises(InvalidMessage) as caught:
        await session.set_value(ValueAddress("app.a", "k", type_), value)

    assert str(caught.value).startswith(why)


async def test_records_that_contain_each_other_are_refused(memory: Place) -> None:
    session = await memory.open()
    value: list[Any] = []
    value.append(Note("a", value))

    with pytest.raises(InvalidMessage, match="value"):
        await session.set_value(ANY, value)


@pytest.mark.parametrize("type_", ["notatype", 5, "int", list["Nope"], (int, str), print, object()], ids=str)  # type: ignore[name-defined]  # noqa: F821
async def test_a_type_that_is_none_is_refused_where_it_is_given(type_: Any, memory: Place) -> None:
    session = await memory.open()

    for make in (ValueAddress, ListAddress):
        with pytest.raises(InvalidDefinition, match="give the type of the values, as in"):
            make("app.a", "k", type_)
    with pytest.raises(InvalidDefinition, match="give the type of the values, as in"):
        await session.values("app.a", type_)


async def test_a_value_read_as_another_type_is_corruption_with_its_place(place: Place) -> None:
    session = await place.open()
    await session.set_value(ValueAddress("app.notes", "first", str), "not a note")

    with pytest.raises(CorruptSession, match="app.notes"):
        await session.value(NOTE)
    with pytest.raises(CorruptSession, match="app.notes/first"):
        await session.values("app.notes", Note)


async def test_a_read_value_is_not_live(place: Place) -> None:
    session = await place.open()
    address: ValueAddress[dict[str, list[int]]] = ValueAddress("app.a", "k", dict[str, list[int]])
    given = {"n": [1]}
    await session.set_value(address, given)

    given["n"].append(2)
    read = await session.value(address)
    assert read == {"n": [1]}
    read["n"].append(3)

    assert await session.value(address) == {"n": [1]}


async def test_a_list_is_appended_to_paged_and_deleted_whole(place: Place) -> None:
    session = await place.open()
    seqs = [await session.append(LOG, Note(text)) for text in "abcd"]
    assert seqs == sorted(set(seqs))

    assert [note.text for _, note in await session.elements(LOG)] == list("abcd")
    assert await session.elements(LOG, after=seqs[1], limit=1) == [(seqs[2], Note("c"))]
    assert await session.elements(LOG, reverse=True, limit=2) == [(seqs[3], Note("d")), (seqs[2], Note("c"))]
    assert await session.elements(LOG, after=seqs[1], reverse=True) == [(seqs[0], Note("a"))]
    await session.close()
    session = await place.open()
    assert len(await session.elements(LOG)) == 4
    await session.delete_list(LOG)
    assert await session.elements(LOG) == []
    assert await session.append(LOG, Note("e")) > seqs[-1]


async def test_a_session_has_a_name_and_entries_have_labels(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    entry = await branch.append_custom("note")
    assert session.name is None and await session.label(entry.id) is None

    await session.set_name("현\ud99c")
    await session.set_label(entry.id, "here")
    await session.close()
    session = await place.open()
    assert session.name == "현\ufffd" and await session.label(entry.id) == "here"

    await session.set_name(None)
    await session.set_label(entry.id, None)
    assert session.name is None and await session.label(entry.id) is None
    with pytest.raises(UnknownEntry, match="ghost"):
        await session.set_label("ghost", "x")
    wrong: Any = 5
    for attempt in (session.set_name(wrong), session.set_label(entry.id, wrong)):
        with pytest.raises(InvalidMessage, match="text is needed here, not int"):
            await attempt


# The ledger.


async def test_adjustments_are_rows_of_the_ledger_and_stats_equal_its_sum(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    done = await lane.run("hi")

    row = await lane.record_usage(
        Usage(output_tokens=-3, cost_nanos=50),
        operation_id=done.operation_id,
        entry_id=done.answer,
        note="refund\ud800",
    )
    await session.record_usage(Usage())

    ledger = await session.usage()
    assert [each.row.kind for each in ledger] == ["attempt", "adjustment", "adjustment"]
    assert ledger[1].row == row and row.note == "refund\ufffd" and row.entry_id == done.answer
    assert ledger[0].row.entry_id == done.answer and ledger[0].row.operation_id == done.operation_id
    totals = session.stats()
    assert totals.usage.rows == 3 and totals.usage.output_tokens == 10 - 3 and totals.usage.cost_nanos == 1_050
    assert totals.usage.unknown_rows == 0 and totals.entries == 2
    assert await session.usage(after_seq=ledger[0].seq, limit=1) == [ledger[1]]
    await session.close()
    session = await place.open()
    assert session.stats() == totals and await session.usage() == ledger


@pytest.mark.parametrize(
    ("usage", "options", "error"),
    [
        ({"input_tokens": 1}, {}, InvalidMessage),
        (None, {}, InvalidMessage),
        (Usage(input_tokens=1.5), {}, InvalidMessage),  # type: ignore[arg-type]
        (Usage(cost_nanos=float("nan")), {}, InvalidMessage),  # type: ignore[arg-type]
        (Usage(input_tokens=2**63), {}, InvalidMessage),
        (Usage(), {"entry_id": "ghost"}, UnknownEntry),
        (Usage(), {"operation_id": 5}, InvalidName),
        (Usage(), {"operation_id": "a b"}, InvalidName),
        (Usage(), {"note": 5}, InvalidMessage),
    ],
    ids=[f"adjustment {number}" for number in range(9)],
)
async def test_an_adjustment_that_cannot_be_kept_is_refused(
    usage: Any, options: dict[str, Any], error: Any, place: Place
) -> None:
    session = await place.open()

    with pytest.raises(error):
        await session.record_usage(usage, **options)

    assert session.stats() == Stats() and await session.usage() == []


async def test_sums_beyond_64_bits_do_not_cost_the_session(place: Place) -> None:
    session = await place.open()

    for _ in range(3):
        await session.record_usage(Usage(cost_nanos=2**63 - 1))

    assert session.stats().usage.cost_nanos == 3 * (2**63 - 1)
    await session.close()
    session = await place.open()
    assert session.stats().usage.cost_nanos == 3 * (2**63 - 1)
