"""Claim: a model with skills is told of them, always in the same words, and reads them and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, ToolResultMessage, tool
from agentlane.skills.skills import FILE_BYTES_MAX, FILES_LISTED_MAX
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place
from tests.skills.written import DESCRIPTION, write_skill


async def results(place: Place, skills: Path, *calls: dict[str, Any], **options: Any) -> list[tuple[str, bool]]:
    """What the calls of ``load_skill`` give, and whether it is an error."""
    model = ScriptedModel([[call("load_skill", **arguments) for arguments in calls], "done"])
    lane = await (await place.open()).lane("main", Agent(model=model, skills=skills, **options))
    result = await lane.run("go")
    assert result.status == "completed", result
    return [
        ("".join(getattr(part, "text", "") for part in message.content), message.is_error)
        for message in await lane.messages()
        if isinstance(message, ToolResultMessage)
    ]


async def test_a_skill_and_its_files_are_read(place: Place, tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "pdf", "# How", refs__a="A\n", b="é\u2028")
    wanted = [{"name": "pdf"}, {"name": "pdf", "file": "refs/a"}, {"name": "pdf", "file": "b"}]

    (skill, *failed), *files = await results(place, tmp_path / "skills", *wanted)

    beside = "Files of this skill, which `load_skill` reads with `file`:\n- b\n- refs/a"
    assert skill == f'<skill name="pdf">\n# How\n</skill>\n\n{beside}' and failed == [False]
    assert files == [("A\n", False), ("é\u2028", False)]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("../mail/SKILL.md", "no path of a file below"),
        ("refs/../../mail/SKILL.md", "no path of a file below"),
        ("/etc/passwd", "no path from the folder on"),
        ("a\0b", "no path from the folder on"),
        ("", "no path of a file below"),
        (".", "no path of a file below"),
        ("linked", "linked is a symbolic link"),
        ("linked_folder/secret", "linked_folder is a symbolic link"),
        ("refs/inside", "refs/inside is a symbolic link"),
        (".env", "hidden"),
        (".git/config", "hidden"),
        ("none", "none is not there"),
        ("none/x", "none is not there"),
        ("refs", "refs is a folder"),
        ("refs/a/b", "cannot be read"),
        ("pipe", "pipe is no ordinary file"),
        ("large", f"at most {FILE_BYTES_MAX} are read"),
        ("image", "it is not UTF-8 text"),
        ("x" * 300, "cannot be read"),
    ],
)
async def test_nothing_else_is_read(memory: Place, tmp_path: Path, file: str, why: str) -> None:
    skills, secret = tmp_path / "skills", tmp_path / "secret"
    secret.write_text("the secret")
    write_skill(skills, "mail", "the secret")
    folder = write_skill(skills, "pdf", refs__a="A", large="x" * (FILE_BYTES_MAX + 1))
    (folder / "linked").symlink_to(secret)
    (folder / "linked_folder").symlink_to(tmp_path)
    (folder / "refs" / "inside").symlink_to(folder / "refs" / "a")
    (folder / ".env").write_text("the secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("the secret")
    (folder / "image").write_bytes(b"\x89PNG\xff")
    os.mkfifo(folder / "pipe")

    [(text, is_error)] = await results(memory, skills, {"name": "pdf", "file": file})

    assert (is_error, why in text, "the secret" in text) == (True, True, False), text
    assert str(tmp_path) not in text, "the model is not told where the folder is"


async def test_a_link_that_is_made_later_is_not_followed(memory: Place, tmp_path: Path) -> None:
    """The skill's own folder becomes a link between the definition and the call."""
    skills = tmp_path / "skills"
    write_skill(skills, "pdf", a="A")
    other = write_skill(tmp_path / "other", "pdf", a="the secret")

    @tool(replay="never", parallel=False)
    async def swap() -> str:
        (skills / "pdf").rename(tmp_path / "aside")
        (skills / "pdf").symlink_to(other)
        return "swapped"

    model = ScriptedModel(
        [[call("load_skill", name="pdf", file="a")], [call("swap")], [call("load_skill", name="pdf", file="a")], "done"]
    )
    lane = await (await memory.open()).lane("main", Agent(model=model, tools=[swap], skills=skills))
    await lane.run("go")

    texts = [message.content[0] for message in await lane.messages() if isinstance(message, ToolResultMessage)]
    assert [getattr(part, "text", "") for part in texts] == [
        "A",
        "swapped",
        "Of skill 'pdf', pdf is a symbolic link; links are not followed.",
    ]


async def test_the_model_is_not_told_where_a_folder_was_that_is_gone(memory: Place, tmp_path: Path) -> None:
    root = tmp_path / "skills"
    write_skill(root, "pdf", a="A", refs__b="B")

    @tool
    def go(what: str) -> str:
        """Take something away."""
        shutil.rmtree(root / what)
        return "gone"

    asked = [call("load_skill", name="pdf", file="a"), call("load_skill", name="pdf", file="refs/b")]
    model = ScriptedModel([[call("go", what="pdf/refs"), asked[1]], [call("go", what=""), *asked], "done"])
    lane = await (await memory.open()).lane("main", Agent(model=model, tools=[go], skills=root, max_parallel=1))
    await lane.run("go")

    texts = [message.text for message in await lane.messages() if isinstance(message, ToolResultMessage)]
    assert texts == [
        "gone",
        "Of skill 'pdf', refs is not there.",
        "gone",
        *["Of skill 'pdf', the folder cannot be read any more, and so no file of it."] * 2,
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "pfd"}, "There is no skill 'pfd'. There are: mail, pdf."),
        ({}, "`name` must say which skill"),
        ({"name": "pdf", "path": "x"}, "leave out path"),
        ({"name": 3}, "`name` must be a text"),
        ({"name": "pdf", "file": ["a"]}, "`file` must be a text"),
    ],
)
async def test_a_bad_call_says_what_there_is(
    memory: Place, tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    write_skill(tmp_path, "pdf")
    write_skill(tmp_path, "mail")

    [(text, is_error)] = await results(memory, tmp_path, arguments)

    assert is_error and why in text


async def test_what_the_agent_allows_bounds_a_skill_too(memory: Place, tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", "x" * 5_000)

    [(text, is_error)] = await results(memory, tmp_path, {"name": "pdf", "file": None}, max_result_bytes=1_000)

    assert not is_error and len(text) < 1_200 and text.startswith('<skill name="pdf">\nxxx')


async def test_the_model_is_told_of_skills_in_the_same_words(place: Place, tmp_path: Path) -> None:
    """Two processes whose folders were written in another order; behind the instructions, or alone."""
    model = ScriptedModel(["one", "two", "three"])
    for number, names in enumerate((["pdf", "mail", "sheets"], ["sheets", "mail", "pdf"])):
        for name in names:
            write_skill(tmp_path / str(number), name, f"of {number}")
        session = await place.open()
        agent = Agent(model=model, skills=[tmp_path / str(number) / name for name in names], instructions="Be kind.")
        await (await session.lane("main", agent)).run("go")
        await session.close()
    session = await place.open()
    await (await session.lane("main", Agent(model=model, skills=tmp_path / "0"))).run("go")

    first, second, alone = [request.instructions for request in model.requests]
    assert first == second == f"Be kind.\n\n{alone}"
    assert alone.endswith("\n\n" + "\n".join(f"- {name}: {DESCRIPTION}" for name in ("mail", "pdf", "sheets")))
    assert "`load_skill`" in alone
    assert [definition.name for definition in model.requests[0].tools] == ["load_skill"]
    assert len({str(request.tools) for request in model.requests}) == 1


async def test_without_the_tool_the_model_is_not_told(memory: Place, tmp_path: Path) -> None:
    """Without skills nothing is added; and a lane that was configured without the tool has no use for the list."""
    write_skill(tmp_path, "pdf")
    model = ScriptedModel(["one", "two", "three"])
    session = await memory.open()
    lane = await session.lane("main", Agent(model=model, skills=tmp_path, instructions=lambda info: "Be kind."))
    await lane.configure(tools=[])
    await lane.run("go")
    await lane.configure(tools=["load_skill"])
    await lane.run("go")
    other = await session.lane("other", Agent(model=model, instructions="Be kind."))
    await other.run("go")

    first, second, third = [request.instructions for request in model.requests]
    assert first == third == "Be kind."
    assert second.startswith("Be kind.\n\n") and "- pdf: " in second
    assert [len(request.tools) for request in model.requests] == [0, 1, 0]


async def test_files_beyond_those_that_are_listed_can_be_read(memory: Place, tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", **{f"refs__{number:03}": str(number) for number in range(FILES_LISTED_MAX + 5)})

    read = await results(memory, tmp_path, {"name": "pdf"}, {"name": "pdf", "file": f"refs/{FILES_LISTED_MAX + 4}"})

    assert read[0][0].count("\n- refs/") == FILES_LISTED_MAX and "SKILL.md" not in read[0][0]
    assert read[1] == (str(FILES_LISTED_MAX + 4), False)


async def test_what_was_read_is_told_with_the_result(memory: Place, tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", a="A")
    model = ScriptedModel([[call("load_skill", name="pdf"), call("load_skill", name="pdf", file="a")], "done"])
    agent: Agent = Agent(model=model, skills=tmp_path)
    lane = await (await memory.open()).lane("main", agent)
    await lane.run("go")

    details = [message.details for message in await lane.messages() if isinstance(message, ToolResultMessage)]
    digest = agent.skills["pdf"].digest
    assert details == [{"skill": "pdf", "digest": digest}, {"skill": "pdf", "digest": digest, "file": "a"}]
    assert agent.tools["load_skill"].options.replay == "safe"
