"""Claim: the commit that first uses what came with a later feature marks the session with it, and a version that does
not know the mark reads the session and writes nothing of it. Without such a feature nothing is marked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import pytest

from agentlane import CompactionPolicy, InvalidWrite, ListAddress, Session, UnsupportedFormat, Usage, ValueAddress
from agentlane.data import addresses, codec, features
from agentlane.data.features import Feature
from agentlane.data.operations import (
    Checkpoint,
    Navigating,
    OperationConfig,
    OperationState,
    Summarizing,
    SummaryWait,
)
from agentlane.data.usage import UsageRow
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.storage.contract import ValueRow
from agentlane.testing import FailingStore, FaultPlan
from agentlane.testing.matrix.lives import bury
from tests.compat.samples import SAMPLES
from tests.session.places import Place, agent_of
from tests.storage.backends import content

NEW = ValueAddress("app.new", "k", int)
OTHER = ValueAddress("app.other", "k", int)
PLAIN = ValueAddress("app.plain", "k", int)


def used_by(namespace: str) -> Any:
    def uses(write: Write) -> bool:
        return isinstance(write, SetValue) and write.address.namespace == namespace

    return uses


LATER = (Feature("new.values", "9.1.0", used_by("app.new")), Feature("other.values", "10.0", used_by("app.other")))


@contextmanager
def later_version() -> Iterator[None]:
    """The library as a later one, which knows two features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "FEATURES", LATER)
        yield


async def marks(session: Session) -> Mapping[str, bytes]:
    return await session._runtime.storage.values("session.feature")


async def numbers(session: Session) -> int:
    """How many sequence numbers were given out."""
    snapshot = await session._runtime.storage.snapshot()
    await snapshot.close()
    return snapshot.last_seq


async def test_a_session_without_such_a_feature_is_not_marked(place: Place) -> None:
    session = await place.open()
    await (await session.lane("main", agent_of("one"))).run("go")
    await session.set_value(NEW, 1)

    assert await marks(session) == {}


SUMMARY = b'{"role":"compaction","summary":"s","kept_from":null,"tokens_before":1}'
SPEAKS_OF_IT = codec.encode(OperationConfig(agent="a", settings={"compaction": 1, "x": '{"at":"summarizing"'}))
MARKING: list[Write] = [
    InsertEntry("e", None, "compaction", SUMMARY),
    InsertEntry("e", None, "branch_summary", b'{"role":"branch_summary","summary":"s","left":"e"}'),
    InsertUsage(UsageRow(id="u", kind="summary", usage=Usage())),
    SetValue(addresses.op_prep("o", "t"), b'{"tip":"e"}'),
    *(
        SetValue(addresses.op_config("o"), codec.encode(OperationConfig(agent="a", compaction=policy)))
        for policy in (None, CompactionPolicy())
    ),
]
PLAIN_WRITES: list[Write] = [
    InsertEntry("e", None, "custom", SUMMARY),
    InsertUsage(UsageRow(id="u", kind="attempt", usage=Usage(), note="summary")),
    InsertUsage(UsageRow(id="u", kind="adjustment", usage=Usage())),
    SetValue(addresses.op_config("o"), SPEAKS_OF_IT),
    SetValue(Address("app.op", "op.state"), b'{"at":"summarizing"}'),
    SetValue(addresses.op_args("o", "c"), b'{"at":"summarizing"}'),
    AppendElement(addresses.pending_frames("o", "r"), b'{"at":"summarizing"}'),
    DeleteValue(addresses.op_prep("o", "t")),
    DeleteList(Address("op.prep", "o|t")),
]


def due(write: Write) -> list[str]:
    return [feature.name for feature in features.Marks().due([PLAIN_WRITES[0], write])]


def test_a_summary_and_whatever_says_that_one_is_made_marks_the_session() -> None:
    assert {str(write): due(write) for write in MARKING} == {str(write): ["compaction"] for write in MARKING}
    assert {str(write): due(write) for write in PLAIN_WRITES} == {str(write): [] for write in PLAIN_WRITES}


def test_of_all_states_those_mark_it_that_came_with_summaries() -> None:
    """As decoding them tells, of every state that there is a sample of."""
    states = [sample.record for sample in SAMPLES.values() if sample.kind is codec.STATE]
    new = [
        isinstance(state, Summarizing | SummaryWait | Navigating)
        or (isinstance(state, Checkpoint) and state.next in ("summarize", "end"))
        for state in states
    ]

    assert {type(state) for state in states} == set(get_args(OperationState)) and sum(new) >= 9
    assert [bool(due(SetValue(addresses.op_state("o"), codec.encode(each)))) for each in states] == new


async def test_the_first_summary_marks_a_session_once(place: Place) -> None:
    session = await place.open()
    for number in range(2):
        writes = [InsertEntry(f"e{number}", None, "compaction", SUMMARY)]
        await session._runtime.submit(writes, lambda commit: None, "summary")
        assert await marks(session) == {"compaction": b'{"since":"0.1.0"}'}
    if place.kind != "memory":
        await session.close()
        session = await place.open()
    before = await numbers(session)
    await session._runtime.submit([InsertEntry("e2", None, "compaction", SUMMARY)], lambda commit: None, "summary")

    assert await numbers(session) == before + 1
    assert [entry.type for entry in await session.entries()] == ["compaction"] * 3


async def test_the_first_use_marks_in_the_same_commit_and_later_ones_do_not(place: Place) -> None:
    with later_version():
        session = await place.open()
        await session.set_value(PLAIN, 1)
        assert await marks(session) == {}
        before = await numbers(session)
        await session.set_value(NEW, 1)
        assert await marks(session) == {"new.values": b'{"since":"9.1.0"}'}
        assert await numbers(session) == before + 2
        await session.set_value(NEW, 2)
        assert await numbers(session) == before + 3
        await session.close()

        session = await place.open()
        await session.set_value(NEW, 3)
        assert await numbers(session) == before + 4
        await session.set_value(OTHER, 1)
        assert (sorted(await marks(session)), await numbers(session)) == (["new.values", "other.values"], before + 6)


async def test_an_older_version_reads_and_does_not_write(place: Place) -> None:
    with later_version():
        session = await place.open()
        lane = await session.lane("main", agent_of("one"))
        await lane.run("go")
        await session.set_value(NEW, 5)
        await session.set_value(OTHER, 6)
        await session.close()
    held = content(place.folder / "sessions") if place.kind == "jsonl" else None

    with pytest.raises(
        UnsupportedFormat, match=r"uses new\.values, other\.values, .* version 10\.0 or newer"
    ) as caught:
        await place.open()
    assert caught.value.details["needed"] == "10.0"
    assert caught.value.details["features"] == ["new.values", "other.values"]
    reader = await place.open(read_only=True)
    assert (await reader.value(NEW), await reader.value(OTHER)) == (5, 6)
    assert len(await reader.entries()) == 2 and [each.id for each in await place.store.list()] == ["s"]
    assert held is None or content(place.folder / "sessions") == held
    with later_version():
        session = await place.open()
        assert await session.value(NEW) == 5


async def test_copies_are_marked_as_what_they_are_of(place: Place) -> None:
    with later_version():
        session = await place.open()
        await (await session.lane("main", agent_of("one"))).run("go")
        await session.set_value(NEW, 5)
        await session.close()
    reader = await place.open(read_only=True)
    await reader.fork(session_id="tree")
    await reader.fork(session_id="branch", branch="main")
    await reader.backup(place.store, session_id="backup")
    await place.store.export("s", place.folder / "s.export")
    await place.store.import_session(place.folder / "s.export", session_id="import")

    for copy in ("tree", "branch", "backup", "import"):
        with pytest.raises(UnsupportedFormat, match="9.1.0"):
            await place.open(copy)
        with later_version():
            assert await marks(await place.open(copy, read_only=True)) == {"new.values": b'{"since":"9.1.0"}'}


async def test_a_commit_that_is_refused_has_marked_nothing(place: Place) -> None:
    with later_version():
        session = await place.open()
        refused = [SetValue(NEW.address, b"1"), InsertEntry("e1", "nowhere", "user", b"{}")]
        with pytest.raises(InvalidWrite):
            await session._runtime.submit(refused, lambda commit: None, "value")
        assert (await marks(session), await session.value(NEW)) == ({}, None)
        await session.set_value(NEW, 1)
        assert await marks(session) == {"new.values": b'{"since":"9.1.0"}'}


@pytest.mark.parametrize("where", ["before", "inside", "after"])
async def test_a_death_at_the_first_use_leaves_both_or_neither(place: Place, where: str) -> None:
    if place.kind == "memory":
        pytest.skip("nothing of it outlives its process")
    with later_version():
        await (await place.open()).close()
        plan = FaultPlan().kill_at(f"commit.value.{where}")
        session = await place.open(probe=plan)
        acting = asyncio.ensure_future(session.set_value(NEW, 5))
        await plan.died()
        await bury(session, acting)
        place._sessions.remove(session)
        place.store = place.new_store()
        session = await place.open()
        there = where == "after"
        assert (await session.value(NEW), bool(await marks(session))) == ((5, True) if there else (None, False))
        await session.set_value(NEW, 6)
        assert await marks(session) == {"new.values": b'{"since":"9.1.0"}'}


async def test_a_commit_that_fails_has_marked_nothing(place: Place) -> None:
    with later_version():
        place.store = failing = FailingStore(place.store, nth=None)
        session = await place.open()
        failing.fail_next()
        with pytest.raises(Exception, match="stopped|failed|space"):
            await session.set_value(NEW, 5)
        await session.reopen()
        assert await marks(session) == {}
        await session.set_value(NEW, 6)
        assert await marks(session) == {"new.values": b'{"since":"9.1.0"}'}


async def test_every_kind_of_write_is_looked_at(place: Place) -> None:
    seen: list[type] = []

    def uses(write: Write) -> bool:
        seen.append(type(write))
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "FEATURES", (Feature("never", "9.1.0", uses),))
        session = await place.open()
        await (await session.lane("main", agent_of("one"))).run("go")
        await session.append(ListAddress("app.plain", "l", int), 1)
        rows = [row async for page in (await session._runtime.storage.snapshot()).pages() for row in page]

    assert {each.__name__ for each in seen} >= {
        "InsertEntry",
        "InsertUsage",
        "SetValue",
        "DeleteValue",
        "AppendElement",
    }
    assert not [row for row in rows if isinstance(row, ValueRow) and row.address.namespace == "session.feature"]
