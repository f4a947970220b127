"""Claim: what a skill or a template says is durable with the accept, and what happens to its file later changes nothing
of it: not the operation, not what the model is shown, and not which request is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    ExpandedFrom,
    InvalidMessage,
    LaneBusy,
    Prompt,
    RequestConflict,
    Skill,
    Template,
    UserMessage,
)
from agentlane.data.messages import TextPart
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import fail
from tests.session.places import Place, agent_of
from tests.skills.written import write_skill, write_template


class Files:
    """Skills and templates in a folder, and agents that read them as they are now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("first")

    def write(self, text: str) -> None:
        write_skill(self.folder / "skills", "pdf", f"{text} skill")
        write_template(self.folder / "templates", "ask", f"{text} $1 ${{how:-well}}")

    def agent(self, *answers: Any, model: ScriptedModel | None = None) -> Agent[Any, Any]:
        return agent_of(
            *answers, model=model, skills=self.folder / "skills", templates=self.folder / "templates", name="a"
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "files")


def said(message: Any) -> str:
    return "|".join(part.text for part in message.content if isinstance(part, TextPart))


async def test_a_later_change_of_a_file_changes_nothing_of_what_was_accepted(place: Place, files: Files) -> None:
    session = await place.open()
    agent = files.agent()
    digest = agent.templates["ask"].digest
    admitted = await (await session.lane("main", agent)).accept(Template("ask", ["Ada"]), operation_id="op")
    await session.close()
    files.write("second")

    session = await place.open()
    model = ScriptedModel(["done", "again"])
    lane = await session.lane("main", files.agent(model=model))
    result = await lane.run(Template("ask", ["Ada"]), operation_id="op")
    await lane.run(Template("ask", ["Bob"], {"how": "now"}))

    assert (result.kind, result.status, result.inputs) == ("template", "completed", admitted.inputs)
    shown = model.requests[0].messages
    assert [said(message) for message in shown] == ["first Ada well"]
    first, _, second, _ = await lane.messages()
    assert isinstance(first, UserMessage) and isinstance(second, UserMessage)
    assert first.expanded_from == ExpandedFrom(kind="template", name="ask", digest=digest, arguments=("Ada",))
    assert said(second) == "second Bob now"
    assert second.expanded_from is not None and second.expanded_from.named == {"how": "now"}
    assert second.expanded_from.digest == lane.agent.templates["ask"].digest != digest


async def test_a_skill_stands_before_what_is_asked_with_it(place: Place, files: Files) -> None:
    session = await place.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", files.agent(model=model))

    result = await lane.run(Skill("pdf", "the second page"))

    assert result.kind == "skill"
    assert [said(message) for message in model.requests[0].messages] == [
        '<skill name="pdf">\nfirst skill\n</skill>|the second page'
    ]
    [entry] = await session.entries(limit=1)
    assert isinstance(entry.body, UserMessage) and entry.body.expanded_from is not None
    assert entry.body.expanded_from.arguments == ("the second page",)


@pytest.mark.parametrize("settled", [False, True])
async def test_the_same_request_is_known_again_whatever_has_become_of_the_files(
    place: Place, files: Files, settled: bool
) -> None:
    """Changed, or gone with the option: the same id with the same request is answered, another is a conflict."""
    request = Template("ask", ["Ada"], {"how": "well"})
    session = await place.open()
    lane = await session.lane("main", files.agent("done"))
    admitted = await lane.accept(request, operation_id="op")
    if settled:
        await lane.drive()
    await session.close()
    files.write("second")
    session = await place.open()

    for agent in (files.agent(), agent_of(name="a")):
        lane = await session.lane("main", agent)
        assert await lane.accept(Template("ask", ["Ada"], {"how": "well"}), operation_id="op") == admitted
        others = [
            Template("ask", ["Ada"]),
            Template("ask", ["Bob"], {"how": "well"}),
            Template("ask", ["Ada", "well"]),
            Template("other", ["Ada"], {"how": "well"}),
            Skill("ask", "Ada"),
            Prompt("first Ada well"),
        ]
        for other in others:
            with pytest.raises(RequestConflict):
                await lane.accept(other, operation_id="op")
    assert len(await session.entries()) == (2 if settled else 1)


async def test_named_arguments_have_no_order(place: Place, files: Files) -> None:
    write_template(files.folder / "templates", "two", "${a} ${b}")
    lane = await (await place.open()).lane("main", files.agent())

    admitted = await lane.accept(Template("two", (), {"a": "1", "b": "2"}), operation_id="op")

    assert await lane.accept(Template("two", [], {"b": "2", "a": "1"}), operation_id="op") == admitted


@pytest.mark.parametrize(
    "request_", [Skill("fdp"), Template("aks"), Template("ask"), Template("ask", ["a", "b"]), Skill("pdf", 1)]
)  # type: ignore[arg-type]
async def test_what_cannot_be_expanded_is_not_accepted(place: Place, files: Files, request_: Any) -> None:
    session = await place.open()
    lane = await session.lane("main", files.agent("done"))
    before = session.stats()

    for operation_id in (None, "op"):
        with pytest.raises(InvalidMessage):
            await lane.accept(request_, operation_id=operation_id)

    assert session.stats() == before and not session.open_operations()
    assert (await lane.run("go", operation_id="op")).text == "done", "the id was not used"


async def test_odd_text_in_arguments_is_stored_by_the_rule_for_all_text(place: Place, files: Files) -> None:
    """A half character is replaced, in the text and in where it came from; everything else comes back as it was, and
    the request is the same one again."""
    given, kept = "\ud99c a\0b\u2028\r\x85", "\ufffd a\0b\u2028\r\x85"
    session = await place.open()
    lane = await session.lane("main", files.agent())
    request = Template("ask", [given], {"how": given})
    admitted = await lane.accept(request, operation_id="op")
    await session.close()

    session = await place.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", files.agent(model=model))
    assert await lane.accept(request, operation_id="op") == admitted
    await lane.drive()
    [message, _] = await lane.messages()
    assert isinstance(message, UserMessage) and message.expanded_from is not None
    assert said(message) == said(model.requests[0].messages[0]) == f"first {kept} {kept}"
    assert (message.expanded_from.arguments, message.expanded_from.named) == ((kept,), {"how": kept})


async def test_a_busy_lane_says_so_first(memory: Place, files: Files) -> None:
    lane = await (await memory.open()).lane("main", files.agent())
    await lane.accept(Prompt("x"), operation_id="op")

    with pytest.raises(LaneBusy):
        await lane.accept(Template("nothing of the kind"))


async def test_a_retry_has_the_old_text_and_the_old_kind(place: Place, files: Files) -> None:
    session = await place.open()
    lane = await session.lane("main", files.agent(fail("refused")))
    failed = await lane.run(Template("ask", ["Ada"]))
    await session.close()
    files.write("second")

    session = await place.open()
    model = ScriptedModel(["done"])
    lane = await session.lane("main", files.agent(model=model))
    again = await lane.retry(failed.operation_id)
    await lane.drive()

    result = await lane.result(again.operation_id)
    assert result is not None and (result.kind, result.status) == ("template", "completed")
    assert [said(message) for message in model.requests[0].messages] == ["first Ada well"]


async def test_what_an_agent_expands_can_be_queued_and_said_again(place: Place, files: Files) -> None:
    """The inbox takes the message; it keeps what it was made of, also when it is given back by a rewind."""
    session = await place.open()
    agent = files.agent("one", "two", "three")
    lane = await session.lane("main", agent)

    await lane.submit(agent.expand(Template("ask", ["Ada"])))
    await lane.resume()
    await lane.next_run(agent.expand(Skill("pdf")))
    await lane.run("go")
    entry = (await lane.entries(newest_first=False))[0]
    back = await lane.rewind(entry.id)
    await lane.run(Prompt(messages=back.messages))

    users = [message for message in await lane.messages() if isinstance(message, UserMessage)]
    assert [(said(each), each.expanded_from and each.expanded_from.kind) for each in users] == [
        ("first Ada well", "template")
    ]
    everything = [entry.body for entry in await session.entries() if isinstance(entry.body, UserMessage)]
    assert [each.expanded_from and each.expanded_from.name for each in everything] == ["ask", "pdf", None, "ask"]


async def test_what_a_message_was_made_of_goes_with_a_fork_and_a_copy(place: Place, files: Files) -> None:
    session = await place.open()
    lane = await session.lane("main", files.agent("done"))
    await lane.run(Template("ask", ["Ada"]))
    [original, *_] = await lane.messages()

    await session.fork(session_id="fork")
    fork = await place.open("fork")
    [copy, *_] = await fork.branch("main").messages()

    assert copy == original and isinstance(copy, UserMessage) and copy.expanded_from is not None
    assert (await session.verify()).findings == (await fork.verify()).findings == ()


async def test_what_is_handed_in_as_an_origin_is_checked(memory: Place) -> None:
    lane = await (await memory.open()).lane("main", agent_of())
    part = (TextPart(text="x"),)

    for origin in ({"kind": "skill"}, ExpandedFrom(kind="other", name="x", digest="d")):  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="expanded_from"):
            await lane.accept(Prompt(messages=(UserMessage(content=part, expanded_from=origin),)))  # type: ignore[arg-type]
    wrong = ExpandedFrom(kind="skill", name="x", digest="d", arguments=(1,))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=r"expanded_from\.arguments\[0\]"):
        await lane.accept(Prompt(messages=(UserMessage(content=part, expanded_from=wrong),)))
