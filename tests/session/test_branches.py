"""Claim: lanes and branches are made once and whole, keep their tips, and take entries that no model stumbles over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import (
    Agent,
    AssistantMessage,
    Branch,
    Entry,
    ErrorInfo,
    ImagePart,
    ListAddress,
    ModelIdentity,
    Prompt,
    Queued,
    Skill,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.data import addresses
from agentlane.data.messages import user
from agentlane.data.writes import DeleteValue, SetValue
from agentlane.errors import (
    CorruptSession,
    InvalidMessage,
    InvalidName,
    UnknownBranch,
    UnknownEntry,
)
from agentlane.machine.context import NOT_AVAILABLE
from agentlane.testing import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place, agent_of, echo

MARKS = ListAddress("app.marks", "m", int)


def asking(*ids: str, stop_reason: Any = "tool_calls") -> AssistantMessage:
    return AssistantMessage(
        content=tuple(ToolCallPart(id=id, name="echo", arguments={}) for id in ids), stop_reason=stop_reason
    )


def result(id: str, text: str = "fine") -> ToolResultMessage:
    return ToolResultMessage(call_id=id, name="echo", content=(TextPart(text=text),))


async def texts(branch: Branch) -> list[str]:
    """The path of a branch in short: role and text of each message, type of each other entry."""
    told = []
    for entry in await branch.entries(newest_first=False):
        body = entry.body
        if isinstance(body, UserMessage):
            told.append("user " + "".join(part.text for part in body.content if isinstance(part, TextPart)))
        elif isinstance(body, AssistantMessage):
            told.append("asks " + " ".join(each.id for each in body.calls) if body.calls else f"says {body.text}")
        elif isinstance(body, ToolResultMessage):
            told.append(f"result {body.call_id} {'missing' if body.text == NOT_AVAILABLE else body.text}")
        else:
            told.append(body.type)
    return told


# Making them.


async def test_a_new_lane_is_one_commit_and_an_existing_one_none(place: Place) -> None:
    session = await place.open()
    mark = (await session.append(MARKS, 1)) + 1

    lane = await session.lane("main", agent_of("hello"))
    after = await session.append(MARKS, 2)

    assert after == mark + 3, "a branch, a lane's configuration, and its state"
    again = await session.lane("main", agent_of("hello"))
    assert await session.append(MARKS, 3) == after + 1, "nothing was written"
    assert again.name == lane.name == "main" and lane.tip() is None
    assert session.lanes() == session.branches() == ["main"]


async def test_ten_callers_make_one_lane(place: Place) -> None:
    session = await place.open()

    lanes = await asyncio.gather(*(session.lane("main", agent_of("hello")) for _ in range(10)))

    assert {lane.name for lane in lanes} == {"main"} and session.lanes() == ["main"]


async def test_a_branch_without_a_lane_becomes_one_and_keeps_its_tip(place: Place) -> None:
    session = await place.open()
    notes = await session.create_branch("notes")
    entry = await notes.append_message(user("remember"))
    assert session.lanes() == [] and session.branches() == ["notes"]

    lane = await session.lane("notes", agent_of("I do"), at=None)

    assert lane.tip() == entry.id == notes.tip() and session.lanes() == ["notes"]
    outcome = await lane.run("do you?")
    assert outcome.text == "I do" and await texts(notes) == ["user remember", "user do you?", "says I do"]


async def test_a_new_lane_or_branch_begins_where_it_is_told(place: Place) -> None:
    session = await place.open()
    main = await session.lane("main", agent_of("one", "two"))
    first = await main.run("a")
    await main.run("b")

    side = await session.lane("side", agent_of("other"), at=first.answer)
    branch = await session.create_branch("branch", at=first.inputs[0])

    assert side.tip() == first.answer and await texts(side) == ["user a", "says one"]
    assert await texts(branch) == ["user a"]
    assert session.stats().entries == 4, "nothing was copied"


async def test_what_is_unknown_or_taken_is_refused_and_makes_nothing(place: Place) -> None:
    session = await place.open()
    await session.create_branch("taken")
    agent = agent_of("x")

    with pytest.raises(UnknownEntry, match="'ghost'"):
        await session.lane("main", agent, at="ghost")
    with pytest.raises(UnknownEntry, match="'ghost'"):
        await session.create_branch("side", at="ghost")
    with pytest.raises(InvalidName, match="exists already"):
        await session.create_branch("taken")
    for name in ("", "a b", "a|b", "x" * 129):
        with pytest.raises(InvalidName):
            await session.lane(name, agent)
        with pytest.raises(InvalidName):
            await session.create_branch(name)
    with pytest.raises(UnknownBranch, match="it has taken"):
        session.branch("main")
    wrong: Any = "an agent"
    with pytest.raises(InvalidMessage, match="an Agent is needed here, not str"):
        await session.lane("main", wrong)

    assert session.branches() == ["taken"] and session.lanes() == []
    await session.close()
    session = await place.open()
    assert session.branches() == ["taken"]


async def test_two_branches_of_one_name_race_and_one_is_made(place: Place) -> None:
    session = await place.open()

    made = await asyncio.gather(*(session.create_branch("b") for _ in range(3)), return_exceptions=True)

    assert [type(each) for each in made].count(Branch) == 1
    assert all(isinstance(each, Branch | InvalidName) for each in made)


async def test_everything_is_there_again_after_a_reopen(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    done = await lane.run("hi")
    await session.create_branch("side", at=done.inputs[0])
    await session.close()

    session = await place.open()

    assert session.branches() == ["main", "side"] and session.lanes() == ["main"]
    assert session.branch("main").tip() == done.answer and session.branch("side").tip() == done.inputs[0]


@pytest.mark.parametrize("missing", [addresses.branch_tip, addresses.lane_config, addresses.lane_state])
async def test_half_a_lane_is_corruption(missing: Any, place: Place) -> None:
    session = await place.open()
    await session.lane("main", agent_of("x"))
    await session.close()
    await write(place, DeleteValue(missing("main")))

    with pytest.raises(CorruptSession, match="lane 'main' is not whole"):
        await place.open()


@pytest.mark.parametrize("missing", [addresses.op_config, addresses.op_state, addresses.op_meta])
async def test_half_an_operation_is_corruption(missing: Any, place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("x"))
    await lane.accept(Prompt("hi"), operation_id="op")
    await session.close()
    await write(place, DeleteValue(missing("op")))

    with pytest.raises(CorruptSession, match="op"):
        await place.open()
    assert await _opens_again(place) is False, "the refused open gave the session up"


async def test_an_operation_that_no_lane_names_is_corruption(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("x"))
    await lane.accept(Prompt("hi"), operation_id="op")
    await session.close()
    await write(place, SetValue(addresses.lane_state("main"), b"{}"))

    with pytest.raises(CorruptSession, match="op"):
        await place.open()


async def _opens_again(place: Place) -> bool:
    try:
        await place.open()
    except CorruptSession:
        return False
    return True


async def write(place: Place, *writes: Any) -> None:
    """Do a session harm behind the library's back."""
    storage = await place.store.open("s")
    await storage.submit(list(writes))
    await storage.close()


async def test_another_agents_name_is_written_by_the_next_accept(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two", name="first"))
    await lane.run("a")
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two", name="second"))
    assert lane.inspect().agent == "first"
    done = await lane.run("b")

    assert lane.inspect().agent == "second" and done.agent == "second"


# Appending.


async def test_a_message_of_each_role_is_appended(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    image = ImagePart(data="aGk=", mime_type="image/png")
    said = [
        UserMessage(content=(TextPart(text="hi"), image)),
        asking("c1", "c2"),
        result("c1"),
        result("c2"),
        AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop"),
    ]

    made = [await branch.append_message(message) for message in said]
    note = await branch.append_custom("app.note", {"n": [1]})

    assert [entry.body for entry in made] == said == await branch.messages()
    assert [entry.parent_id for entry in (*made, note)] == [None, *(entry.id for entry in made)]
    assert [entry.seq for entry in made] == sorted(entry.seq for entry in made)
    assert [*made, note] == await branch.entries(newest_first=False) == await session.entries()
    assert branch.tip() == note.id and note.type == "custom" and await session.entry(note.id) == note


async def test_results_are_placed_for_calls_that_have_none_before_another_message(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    await branch.append_message(asking("c1", "c2", "c3"))
    await branch.append_message(result("c1"))
    await branch.append_custom("note")

    entry = await branch.append_message(user("go on"))

    assert await texts(branch) == [
        "asks c1 c2 c3",
        "result c1 fine",
        "note",
        "result c2 missing",
        "result c3 missing",
        "user go on",
    ]
    path = await branch.entries(newest_first=False)
    assert entry == path[-1], "what was returned is what is stored: parent, seq and all"
    assert [each.seq for each in path] == sorted({each.seq for each in path})


async def test_accepting_on_a_tip_inside_a_batch_repairs_it_in_the_same_commit(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    await branch.append_message(user("go"))
    await branch.append_message(asking("c1", "c2"))
    await branch.append_message(result("c1"))
    model = ScriptedModel(["done"])
    lane = await session.lane("b", Agent(model=model))

    done = await lane.run("and now?")

    assert done.text == "done"
    assert await texts(lane) == [
        "user go",
        "asks c1 c2",
        "result c1 fine",
        "result c2 missing",
        "user and now?",
        "says done",
    ]
    model.require_no_violations()


async def test_a_branch_made_inside_a_batch_goes_on_without_the_results_of_the_other(place: Place) -> None:
    session = await place.open()
    main = await session.lane("main", agent_of([call("echo"), call("echo")], "done", tools=[echo]))
    await main.run("go")
    asked = (await main.entries(types=["assistant"], newest_first=False))[0]

    model = ScriptedModel(["else"], identity=ModelIdentity(provider="scripted", name="other"))
    side = await session.lane("side", Agent(model=model), at=asked.id)
    await side.run("another way")

    told = await texts(side)
    assert [each.split()[0] for each in told] == ["user", "asks", "result", "result", "user", "says"]
    assert told[2].endswith("missing") and told[3].endswith("missing")
    assert "missing" not in " ".join(await texts(main))
    assert model.violations == []


@pytest.mark.parametrize("stop_reason", ["error", "aborted"])
async def test_error_and_aborted_answers_never_get_results(stop_reason: str, place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    await branch.append_message(user("go"))
    failed = AssistantMessage(
        content=asking("c1").content, stop_reason=stop_reason, error=ErrorInfo(code="c", message="m")
    )
    await branch.append_message(failed)

    with pytest.raises(InvalidMessage, match="a result for call 'c1' must follow an answer with that call"):
        await branch.append_message(result("c1"))
    await branch.append_message(user("again"))
    lane = await session.lane("b", agent_of("fine"))
    await lane.run("and again")

    assert await texts(lane) == ["user go", "asks c1", "user again", "user and again", "says fine"]


@pytest.mark.parametrize("before", [(), (user("a"),), (asking("c1"), result("c1")), (asking("c2"),)], ids=len)
async def test_a_result_without_its_call_is_refused(before: tuple[Any, ...], place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    for message in before:
        await branch.append_message(message)

    with pytest.raises(InvalidMessage, match="a result for call 'c1' must follow"):
        await branch.append_message(result("c1"))

    assert len(await branch.entries()) == len(before)


async def test_a_result_out_of_the_order_of_the_calls_or_of_another_tool_is_refused(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")
    await branch.append_message(user("go"))
    await branch.append_message(asking("c1", "c2", "c2"))

    async def refused(message: ToolResultMessage, why: str) -> None:
        held = await branch.entries()
        with pytest.raises(InvalidMessage) as caught:
            await branch.append_message(message)
        assert why in str(caught.value) and await branch.entries() == held

    await refused(result("c2"), "the result for call 'c1' of 'echo' must come before the one for call 'c2'")
    await refused(replace(result("c1"), name="other"), "call 'c1' is one of 'echo', not of 'other'")
    await branch.append_message(result("c1"))
    await refused(result("c1"), "a result for call 'c1' must follow an answer with that call and no result for it")
    await refused(replace(result("c2"), name=""), "call 'c2' is one of 'echo', not of ''")
    await branch.append_message(result("c2"))
    await branch.append_message(result("c2"))
    await branch.append_message(user("thanks"))

    assert await texts(branch) == [
        "user go",
        "asks c1 c2 c2",
        *("result c1 fine", "result c2 fine", "result c2 fine"),
        "user thanks",
    ]
    assert await check_invariants(session) == []


WRONG: list[tuple[Any, str]] = [
    ("hi", "message: a message record is needed here, not str"),
    ({"role": "user", "content": "hi"}, "message: a message record is needed here, not dict"),
    (("user", "hi"), "message: a message record is needed here, not tuple"),
    (None, "message: a message record is needed here, not NoneType"),
    (Prompt("hi"), "message: a message record is needed here, not Prompt"),
    (Skill("x"), "message: a message record is needed here, not Skill; give agent.expand(...) of it"),
    (UserMessage(content="hi"), "message.content: a tuple is needed here, not str"),
    (UserMessage(content=()), "message.content: it is empty"),
    (UserMessage(content=({"text": "hi"},)), "message.content[0]: a TextPart or ImagePart is needed here, not dict"),
    (AssistantMessage(content="hi", stop_reason="stop"), "answer.content: a tuple is needed here, not str"),
    (AssistantMessage(content=(), stop_reason="bored"), "entry: Invalid enum value 'bored' - at `$.stop_reason`"),
    (AssistantMessage(content=(), stop_reason="error", error={"code": "x"}), "message: "),
    (ToolResultMessage(call_id=5, name="t", content=()), "message.call_id: text is needed here, not int"),
    (ToolResultMessage(call_id="c", name="t", content="hi"), "message.content[0]: a TextPart or ImagePart"),
    (ToolResultMessage(call_id="c", name="t", content=None), "message: "),
    (
        ToolResultMessage(call_id="c", name="t", content=(), details={"n": float("nan")}),
        "message.details.n: nan is not a JSON number",
    ),
    (ToolResultMessage(call_id="c", name="t", content=(), is_error="no"), "entry: Expected `bool`, got `str`"),
]


@pytest.mark.parametrize(("message", "why"), WRONG, ids=[f"wrong {number}" for number in range(len(WRONG))])
async def test_what_is_no_message_is_refused_with_its_path(message: Any, why: str, memory: Place) -> None:
    session = await memory.open()
    branch = await session.create_branch("b")

    with pytest.raises(InvalidMessage) as caught:
        await branch.append_message(message)

    assert str(caught.value).startswith(why) and branch.tip() is None


async def test_custom_entries_are_checked_too(memory: Place) -> None:
    session = await memory.open()
    branch = await session.create_branch("b")

    with pytest.raises(InvalidMessage, match=r"^data\.x: "):
        await branch.append_custom("note", {"x": float("inf")})
    with pytest.raises(InvalidName):
        await branch.append_custom("a note", {})
    assert branch.tip() is None


async def test_nothing_is_placed_while_an_operation_is_open_and_not_driven(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("x"))
    await lane.accept(Prompt("hi"), operation_id="op")
    tip = lane.tip()

    written = [
        await lane.append_message(user("a")),
        await lane.append_custom("note"),
        await session.branch("main").append_custom("n"),
    ]

    assert [type(each) for each in written] == [Queued] * 3 and lane.tip() == tip
    await lane.resume()
    entries = await lane.entries(newest_first=False)
    assert [each.id for each in entries][1:-1] == [each.id for each in written]


async def test_an_appended_answer_is_not_billed(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("b")

    await branch.append_message(AssistantMessage(content=(TextPart(text="x"),), stop_reason="stop"))

    assert session.stats().usage.rows == 0 and await session.usage() == []


async def test_a_branch_is_not_a_lane_and_says_so(memory: Place) -> None:
    session = await memory.open()
    lane = await session.lane("main", agent_of("x"))
    branch = session.branch("main")

    assert not hasattr(branch, "accept") and repr(branch) == "Branch('main')"
    assert branch.tip() is None and lane.tip() is None


# Returned objects are not live (R79).


async def test_an_appended_entry_that_is_changed_changes_nothing(place: Place) -> None:
    session = await place.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", Agent(model=model))
    arguments: dict[str, Any] = {"a": [1]}
    details: dict[str, Any] = {"b": [1]}
    await lane.append_message(user("go"))
    asked = await lane.append_message(
        AssistantMessage(content=(ToolCallPart(id="c1", name="echo", arguments=arguments),), stop_reason="tool_calls")
    )
    answered = await lane.append_message(
        ToolResultMessage(call_id="c1", name="echo", content=(TextPart(text="x"),), details=details)
    )
    note = await lane.append_custom("note", details)

    arguments["a"].append(2)
    details["b"].append(2)
    spoil(asked, answered, note)
    spoil(*await lane.entries(newest_first=False))
    await lane.run("go on")

    sent = model.requests[0].messages
    assert isinstance(sent[1], AssistantMessage) and sent[1].calls[0].arguments == {"a": [1]}
    assert isinstance(sent[2], ToolResultMessage) and sent[2].details == {"b": [1]}
    kept = [entry.body for entry in await lane.entries(newest_first=False)]
    assert kept[1].calls[0].arguments == {"a": [1]}  # type: ignore[union-attr]
    assert kept[2].details == kept[3].data == {"b": [1]}  # type: ignore[union-attr]


def spoil(*entries: Entry) -> None:
    """Change everything of an entry that can be changed."""
    for entry in entries:
        body = entry.body
        for part in getattr(body, "content", ()):
            if isinstance(part, ToolCallPart) and part.arguments is not None:
                part.arguments["a"] = "spoiled"
        for data in (getattr(body, "details", None), getattr(body, "data", None)):
            if data is not None:
                data["b"] = "spoiled"


# Reading.


async def test_a_path_is_read_by_pages_kinds_and_stops(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of("one", "two", "three"))
    done = [await lane.run(text) for text in "abc"]

    newest = await lane.entries(limit=2)
    older = await lane.entries(limit=2, after=newest[-1].id)
    users = await lane.entries(types=["user"], newest_first=False)
    since = await lane.entries(stop_at=done[2].inputs[0])

    assert [entry.id for entry in newest] == [done[2].answer, done[2].inputs[0]]
    assert [entry.id for entry in older] == [done[1].answer, done[1].inputs[0]]
    assert [entry.id for entry in users] == [each.inputs[0] for each in done]
    assert since == newest
    assert await lane.entries(limit=0) == [] and await lane.entries(after=done[0].inputs[0]) == []
    with pytest.raises(UnknownEntry):
        await lane.entries(after="ghost")
