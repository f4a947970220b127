"""Claim: what is wrong with a skill or a template is said when the agent is defined, with the file and the line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, InvalidDefinition, tool
from agentlane.skills.skills import DESCRIPTION_LENGTH_MAX, FILE_BYTES_MAX
from tests.session.places import agent_of
from tests.skills.written import DESCRIPTION, write_skill, write_template


def refused(**options: Any) -> str:
    with pytest.raises(InvalidDefinition) as error:
        agent_of(**options)
    return str(error.value)


def test_skills_and_templates_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "sheets", references__a="A", b="B", scripts__run="R")
    write_skill(tmp_path / "skills", "pdf")
    write_skill(tmp_path / "more", "mail")
    (tmp_path / "skills" / ".git").mkdir()
    (tmp_path / "skills" / "sheets" / ".env").write_text("hidden")
    (tmp_path / "skills" / "sheets" / "scripts" / ".cache").mkdir()
    (tmp_path / "skills" / "sheets" / "scripts" / ".cache" / "x").write_text("hidden")
    (tmp_path / "skills" / "_drafts").mkdir()
    (tmp_path / "skills" / "README.md").write_text("about these")
    write_template(tmp_path / "templates", "review", "---\ndescription: Look\nother: [x\n---\nReview $1")
    write_template(tmp_path / "templates", "ask", "Ask ${who:-Ada}: $ARGUMENTS")
    (tmp_path / "templates" / "notes.txt").write_text("x")

    agent: Agent = agent_of(
        skills=[tmp_path / "skills", str(tmp_path / "more" / "mail")], templates=tmp_path / "templates"
    )

    assert list(agent.skills) == ["mail", "pdf", "sheets"]
    sheets = agent.skills["sheets"]
    assert (sheets.description, sheets.body) == (DESCRIPTION, "Open it.")
    assert sheets.files == ("b", "references/a", "scripts/run")
    assert sheets.file == str(tmp_path / "skills" / "sheets" / "SKILL.md")
    assert [(each.name, each.description, each.arguments) for each in agent.templates.values()] == [
        ("ask", "", ("${who:-Ada}", "$ARGUMENTS")),
        ("review", "Look", ("$1",)),
    ]
    assert agent.skills["pdf"].digest != sheets.digest and len(sheets.digest) == 32


def test_a_template_is_named_by_its_file_too(tmp_path: Path) -> None:
    file = write_template(tmp_path, "ask", "Ask.")
    write_template(tmp_path, "other", "No.")

    assert list(agent_of(templates=[file]).templates) == ["ask"]


@pytest.mark.parametrize(
    ("head", "line", "why"),
    [
        ("description: x", 1, "`name` is missing"),
        ("name: pdf", 1, "`description` is missing"),
        ("name: pdf\ndescription:", 3, "`description` is missing"),
        ("name: other\ndescription: x", 2, "'other' must be that of its folder, 'pdf'"),
        ("description: x\nname: PDF", 3, "single hyphens"),
        ("name: -pdf\ndescription: x", 2, "single hyphens"),
        ("name: p--df\ndescription: x", 2, "single hyphens"),
        (f"name: pdf\ndescription: {'x' * (DESCRIPTION_LENGTH_MAX + 1)}", 3, "1025 characters; at most 1024"),
        ("name: pdf\nlicense: x\ndescription: use it: always", 4, "put the text in quotes"),
    ],
)
def test_a_bad_frontmatter_is_named_by_its_line(tmp_path: Path, head: str, line: int, why: str) -> None:
    folder = write_skill(tmp_path, head=head)

    said = refused(skills=tmp_path)

    assert f"{folder / 'SKILL.md'}:{line}: " in said
    assert why in said


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a\n${two words}", 2, "write $${two words}"),
        ("---\ndescription: x\n---\n\n${open", 5, "not closed"),
        ("$2\n$3", 2, "$3 is used and $1 is not"),
        ("It costs $20.", 1, "for the text write $$20"),
        ("${a:-x}\n${a:-y}", 2, "its default is 'x' in line 1"),
        ("$10000", 1, "write $$10000"),
        ("x\n${a:-${b}}", 2, "a default is a text, in which there are no other places"),
        ("---\ndescription: x\n---\n", 5, "it says nothing"),
        ("---\ndescription: [\n---\nx", 2, "'['"),
    ],
)
def test_a_bad_template_is_named_by_its_line(tmp_path: Path, text: str, line: int, why: str) -> None:
    file = write_template(tmp_path, "bad", text)

    said = refused(templates=tmp_path)

    assert f"{file}:{line}: " in said
    assert why in said


def test_what_is_there_twice_is_named_with_both_places(tmp_path: Path) -> None:
    for root in ("a", "b"):
        write_skill(tmp_path / root)
        write_template(tmp_path / root / "t", "ask", "x")

    said = refused(skills=[tmp_path / "a" / "pdf", tmp_path / "b" / "pdf"])
    assert str(tmp_path / "a" / "pdf" / "SKILL.md") in said and str(tmp_path / "b" / "pdf" / "SKILL.md") in said
    said = refused(templates=[tmp_path / "a" / "t", tmp_path / "b" / "t"])
    assert str(tmp_path / "a" / "t" / "ask.md") in said and str(tmp_path / "b" / "t" / "ask.md") in said


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty" / "pdf").mkdir(parents=True)
    (tmp_path / "bare").mkdir()

    assert f"{tmp_path / 'none'} is not there" in refused(skills=tmp_path / "none")
    assert f"{tmp_path / 'none'} is not there" in refused(templates=[tmp_path / "none"])
    assert f"{tmp_path / 'empty' / 'pdf' / 'SKILL.md'}: SKILL.md is not there" in refused(skills=tmp_path / "empty")
    assert "no SKILL.md in it" in refused(skills=tmp_path / "bare")
    assert "no .md file in it" in refused(templates=tmp_path / "bare")
    assert "no .md file and no folder" in refused(templates=_touched(tmp_path / "x.txt"))
    for options in ({"skills": 3}, {"templates": [b"x"]}, {"skills": [""]}, {"skills": None}):
        assert "path" in refused(**options)


def test_no_link_leads_out_of_a_folder(tmp_path: Path) -> None:
    """A file, a skill, and a template that lie elsewhere; the folder that the application names may be a link."""
    outside = write_skill(tmp_path / "outside", "secret")
    inside = tmp_path / "inside"
    write_skill(inside)
    (tmp_path / "linked").symlink_to(inside)
    assert list(agent_of(skills=tmp_path / "linked").skills) == ["pdf"]

    (inside / "secret").symlink_to(outside)
    assert "secret is a symbolic link" in refused(skills=inside)
    (inside / "secret").unlink()
    (inside / "pdf" / "SKILL.md").unlink()
    (inside / "pdf" / "SKILL.md").symlink_to(outside / "SKILL.md")
    assert "SKILL.md is a symbolic link" in refused(skills=inside)
    (inside / "ask.md").symlink_to(outside / "SKILL.md")
    assert "ask.md is a symbolic link" in refused(templates=inside)


def test_what_is_too_large_or_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    write_skill(tmp_path / "large", body="x" * FILE_BYTES_MAX)
    assert f"at most {FILE_BYTES_MAX} are read" in refused(skills=tmp_path / "large")

    folder = write_skill(tmp_path / "bytes")
    (folder / "SKILL.md").write_bytes(b"---\nname: pdf\ndescription: x\n---\n\xff\n")
    assert f"{folder / 'SKILL.md'}:5: it is not UTF-8 text" in refused(skills=tmp_path / "bytes")

    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "wait.md")
    assert "wait.md is no ordinary file" in refused(templates=tmp_path / "pipe")
    (tmp_path / "folder" / "x.md").mkdir(parents=True)
    assert "x.md is a folder" in refused(templates=tmp_path / "folder")


def test_a_tool_of_the_same_name_is_refused(tmp_path: Path) -> None:
    write_skill(tmp_path)

    @tool
    async def load_skill(name: str) -> str:
        return name

    assert "load_skill" in refused(skills=tmp_path, tools=[load_skill])
    assert list(agent_of(tools=[load_skill]).tools) == ["load_skill"], "without skills the name is free"


def test_names_of_templates_are_checked(tmp_path: Path) -> None:
    write_template(tmp_path, "two words", "x")

    assert "two words" in refused(templates=tmp_path)


def _touched(path: Path) -> Path:
    path.write_text("x")
    return path
