"""Claim: opening finds the one session that was meant or says why not, and never makes what was not asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentlane import Prompt, open_session
from agentlane.errors import (
    AgentLaneError,
    CorruptSession,
    InvalidMessage,
    InvalidName,
    LaneBusy,
    ReadOnlySession,
    SessionOwned,
    StoreOwned,
    UnknownSession,
    UnsupportedFormat,
)
from tests.session.places import Place, agent_of

PATHS = ["a.db", "a.sqlite", "a.sqlite3", "one.jsonl", "folder"]


def files(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("as_path", [str, Path], ids=["text", "path"])
async def test_a_path_names_a_store_and_its_only_session_is_found_again(
    target: str, as_path: type, tmp_path: Path
) -> None:
    where = as_path(str(tmp_path / target))

    async with open_session(where, durability="process", metadata={"by": "me"}) as session:
        await session.set_name("mine")
        first = session.id
    async with open_session(where, durability="process") as session:
        assert (session.id, session.name, session.metadata) == (first, "mine", {"by": "me"})

    if target == "one.jsonl":
        assert first == "one"


async def test_each_memory_is_its_own() -> None:
    async with open_session(":memory:") as one, open_session(":memory:") as other:
        await one.set_name("one")
        assert other.name is None and one.id != other.id


async def test_a_store_that_is_handed_in_stays_open_and_one_that_was_made_is_closed(place: Place) -> None:
    session = await place.open()
    await session.close()

    assert [info.id for info in await place.store.list()] == ["s"]
    again = await place.open()
    assert again.id == "s"


async def test_an_opener_can_be_awaited_and_does_nothing_until_then(tmp_path: Path) -> None:
    opener = open_session(tmp_path / "later.db", durability="process")
    assert files(tmp_path) == []

    session = await opener

    assert (tmp_path / "later.db").exists()
    await session.close()


async def test_among_several_sessions_one_must_be_named(place: Place) -> None:
    for name in ("a", "b"):
        await place.store.create(name)

    with pytest.raises(UnknownSession, match="several sessions; name one of a, b") as caught:
        await place.open(None)

    assert caught.value.details["known"] == ["a", "b"]
    assert (await place.open("b")).id == "b"


async def test_an_id_that_is_not_there_is_an_error_and_makes_nothing(place: Place) -> None:
    with pytest.raises(UnknownSession, match="'ghost'"):
        await open_session(place.store, session_id="ghost")

    assert list(await place.store.list()) == []


@pytest.mark.parametrize("target", PATHS)
@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}, {"session_id": "ghost"}], ids=str)
async def test_what_is_not_there_is_not_made_unless_asked(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((UnknownSession, ReadOnlySession)):
        await open_session(tmp_path / target, durability="process", **options)

    async with open_session(":memory:"):
        pass
    left = [name for name in files(tmp_path) if not name.endswith(".lock")]
    assert left in ([], ["folder"])


async def test_a_session_file_holds_its_own_session_only(tmp_path: Path) -> None:
    async with open_session(tmp_path / "one.jsonl", durability="process"):
        pass
    async with open_session(tmp_path / "two.jsonl", durability="process") as two:
        assert two.id == "two"

    async with open_session(tmp_path / "one.jsonl", durability="process") as one:
        assert one.id == "one", "the other file beside it is not looked at"
    with pytest.raises(UnknownSession):
        await open_session(tmp_path / "one.jsonl", session_id="three", durability="process")


@pytest.mark.parametrize("id", ["a/b", "../x", ".hidden", "", "a b"])
async def test_an_id_that_could_leave_the_folder_names_nothing(id: str, place: Place) -> None:
    with pytest.raises((InvalidName, UnknownSession)):
        await open_session(place.store, session_id=id)
    with pytest.raises(InvalidName):
        await place.store.create(id)


@pytest.mark.parametrize("metadata", [{"x": float("nan")}, {"x": {1}}, {1: 2}, {"x": object()}], ids=str)
async def test_metadata_is_json_data(metadata: Any, place: Place) -> None:
    with pytest.raises(InvalidMessage, match="^metadata"):
        await open_session(place.store, metadata=metadata)

    assert list(await place.store.list()) == []


async def test_metadata_is_a_copy(place: Place) -> None:
    given = {"tags": ["a"]}
    async with open_session(place.store, metadata=given) as session:
        given["tags"].append("b")
        session.metadata["tags"].append("c")

        assert session.metadata == {"tags": ["a"]}


# What is damaged, or something else (R55).


@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
@pytest.mark.parametrize(
    ("content", "errors"),
    [
        (b"this is a letter to my aunt\n" * 40, (CorruptSession, UnsupportedFormat)),
        (b"\x00" * 5_000, (CorruptSession, UnsupportedFormat)),
        (b"{}\n", (CorruptSession, UnsupportedFormat)),
    ],
    ids=["text", "zeros", "json"],
)
async def test_a_file_of_something_else_is_an_error_and_stays_as_it_is(
    target: str, content: bytes, errors: Any, tmp_path: Path
) -> None:
    path = tmp_path / target
    path.write_bytes(content)

    with pytest.raises(errors):
        await open_session(path, durability="process")

    assert path.read_bytes() == content


@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
async def test_a_folder_in_the_place_of_a_file_is_an_error(target: str, tmp_path: Path) -> None:
    (tmp_path / target).mkdir()

    with pytest.raises((AgentLaneError, OSError)):
        await open_session(tmp_path / target, durability="process")

    assert (tmp_path / target).is_dir() and list((tmp_path / target).iterdir()) == []


async def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")

    with pytest.raises((AgentLaneError, OSError)):
        await open_session(tmp_path / "notes", durability="process")

    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("target", ["a.db", "one.jsonl"])
async def test_a_file_that_may_not_be_read_is_an_error(target: str, tmp_path: Path) -> None:
    async with open_session(tmp_path / target, durability="process"):
        pass
    (tmp_path / target).chmod(0)

    with pytest.raises((AgentLaneError, OSError)):
        await open_session(tmp_path / target, durability="process")


@pytest.mark.parametrize("target", [None, 5, b"bytes.db", ["a.db"], object()], ids=lambda each: type(each).__name__)
async def test_what_is_no_target_is_refused_plainly(target: Any) -> None:
    with pytest.raises(InvalidMessage, match="target"):
        await open_session(target)


# Owners.


async def test_a_session_has_one_writer_and_many_readers(place: Place) -> None:
    writer = await place.open()
    await writer.set_name("first")

    with pytest.raises((SessionOwned, StoreOwned)):
        await place.open()
    reader = await place.open(read_only=True)

    assert reader.name == "first"
    await writer.close()
    assert (await place.open()).name == "first"


async def test_a_reader_reads_and_is_refused_everything_else(place: Place) -> None:
    session = await place.open()
    agent = agent_of("hello")
    lane = await session.lane("main", agent)
    result = await lane.run("hi")
    await session.close()

    reader = await place.open(read_only=True)
    lane = await reader.lane("main", agent)

    assert await lane.result(result.operation_id) == result
    assert [entry.id for entry in await lane.entries()] == [result.answer, *result.inputs]
    assert lane.inspect().last_operation_id == result.operation_id
    assert reader.stats().entries == 2 and reader.stats().usage == result.usage
    for attempt in (
        lambda: lane.accept(Prompt("more")),
        lambda: lane.drive(),
        lambda: lane.request_abort(result.operation_id),
        lambda: lane.configure(settings={}),
        lambda: lane.append_custom("note"),
        lambda: reader.lane("other", agent),
        lambda: reader.create_branch("b"),
        lambda: reader.set_name("x"),
        lambda: reader.set_label(result.inputs[0], "x"),
    ):
        with pytest.raises(ReadOnlySession):
            await attempt()


async def test_opening_an_existing_session_writes_nothing(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    admitted = await lane.accept(Prompt("hi"))
    before = [entry.seq for entry in await session.entries()]
    await session.close()

    for _ in range(3):
        session = await place.open()
        lane = await session.lane("main", agent_of("hello"))
        assert [entry.seq for entry in await session.entries()] == before
        with pytest.raises(LaneBusy) as caught:
            await lane.accept(Prompt("other"))
        assert caught.value.details["operation_id"] == admitted.operation_id
        await session.close()

    # The next write takes the next number: nothing was written in between.
    session = await place.open()
    await session.set_name("x")
    lane = await session.lane("main", agent_of("hello"))
    await lane.abort()
    entry = await lane.append_custom("note")
    assert entry.seq > before[-1]
