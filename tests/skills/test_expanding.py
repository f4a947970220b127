"""Claim: each place of a template gets its argument, once; what is missing, or has no place, is named by an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, ExpandedFrom, ImagePart, InvalidMessage, PayloadTooLarge, Prompt, Skill, Template
from agentlane.data.digests import digest
from agentlane.data.messages import TextPart, UserMessage
from tests.session.places import agent_of
from tests.skills.written import write_skill, write_template


def agent_with(folder: Path, text: str) -> Agent[Any, Any]:
    write_template(folder, "t", text)
    return agent_of(templates=folder)


def expanded(folder: Path, text: str, *arguments: str, **named: str) -> str:
    [part] = agent_with(folder, text).expand(Template("t", arguments, named)).content
    assert isinstance(part, TextPart)
    return part.text


@pytest.mark.parametrize(
    ("text", "arguments", "named", "result"),
    [
        ("no places", (), {}, "no places"),
        ("$1 and $2, $1 again", ("a", "b"), {}, "a and b, a again"),
        ("${2}${1}", ("a", "b"), {}, "ba"),
        (" ".join(f"${n}" for n in range(1, 13)), tuple("abcdefghijkl"), {}, "a b c d e f g h i j k l"),
        ("$ARGUMENTS.", ("a", "b c"), {}, "a b c."),
        ("$1: $ARGUMENTS", ("a", "b", "c"), {}, "a: a b c"),
        ("${who} of ${where}", (), {"where": "Rome", "who": "Ada"}, "Ada of Rome"),
        ("${1:-main} ${how:-with care}", (), {}, "main with care"),
        ("${1:-main} ${how:-with care}", ("dev",), {"how": ""}, "dev "),
        ("${a:-x} ${a}", (), {}, "x x"),
        ("${ARGUMENTS:-all} files", (), {}, "all files"),
        ("${ARGUMENTS:-all} files", ("two",), {}, "two files"),
        ("${a:-}.", (), {}, "."),
        (
            "$$1 $${x} $$$1 costs $0, $HOME or $ARGUMENTS_ALL, $",
            ("5",),
            {},
            "$1 ${x} $5 costs $0, $HOME or $ARGUMENTS_ALL, $",
        ),
        ("$1 $2", ("$2 ${x} $$ $ARGUMENTS", "b"), {}, "$2 ${x} $$ $ARGUMENTS b"),
        ("a\n\n$1\n", ("é\n\u2028",), {}, "a\n\né\n\u2028"),
    ],
)
def test_places_are_filled(
    tmp_path: Path, text: str, arguments: tuple[str, ...], named: dict[str, str], result: str
) -> None:
    assert expanded(tmp_path, text, *arguments, **named) == result


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {}, ["nothing is given for $1 (line 3), ${depth} (line 4)"]),
        (("a",), {}, ["nothing is given for ${depth} (line 4)"]),
        (("a", "b"), {"depth": "x"}, ["no place for 'b'"]),
        (("a",), {"depth": "x", "dpeth": "y"}, ["no place for dpeth"]),
        (("a",), {"depth": "x", "1": "y"}, ["no place for 1"]),
        ((), {"ARGUMENTS": "y"}, ["no place for ARGUMENTS"]),
    ],
)
def test_what_is_missing_or_unknown_is_named(
    tmp_path: Path, arguments: tuple[str, ...], named: dict[str, str], said: list[str]
) -> None:
    agent = agent_with(tmp_path, "---\n---\nReview $1\nat ${depth}, ${tone:-kindly}")

    with pytest.raises(InvalidMessage) as error:
        agent.expand(Template("t", arguments, named))

    for each in [*said, "it takes $1, ${depth}, ${tone:-kindly}"]:
        assert each in str(error.value)


def test_each_missing_one_is_named_with_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidMessage, match=r"\$\{a\} \(line 2\), \$\{b\} \(line 4\), \$\{c\} \(line 5\);"):
        expanded(tmp_path, "\n${a}\n\n${b} ${a}\n$$ ${c}")


def test_a_template_without_places_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidMessage, match="no place for 'x'; it takes no arguments"):
        agent_with(tmp_path, "hello").expand(Template("t", ["x"]))


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "pdf")
    write_skill(tmp_path / "skills", "mail")
    write_template(tmp_path / "templates", "ask", "x")
    agent: Agent = agent_of(skills=tmp_path / "skills", templates=tmp_path / "templates")

    with pytest.raises(InvalidMessage, match="there is no skill 'pfd'; there are: mail, pdf$"):
        agent.expand(Skill("pfd"))
    with pytest.raises(InvalidMessage, match="there is no template 'pdf'; there are: ask$"):
        agent.expand(Template("pdf"))
    with pytest.raises(InvalidMessage, match="there are: none$"):
        agent_of().expand(Skill("pdf"))


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (Skill(3), "skill.name"),  # type: ignore[arg-type]
        (Skill("pdf", None), "skill.text"),  # type: ignore[arg-type]
        (Template(None), "template.name"),  # type: ignore[arg-type]
        (Template("ask", "words"), "template.arguments"),
        (Template("ask", [1]), "template.arguments[0]"),  # type: ignore[list-item]
        (Template("ask", (), ["a"]), "template.named"),  # type: ignore[arg-type]
        (Template("ask", (), {"a": 1}), "template.named.a"),  # type: ignore[dict-item]
        (Prompt("hello"), "request"),
        ("hello", "request"),
    ],
)
def test_what_is_no_text_is_named_by_its_path(request_: Any, path: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        agent_of().expand(request_)

    assert str(error.value).startswith(f"{path}: ")


def test_what_grows_too_large_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """10,000 places for ten million characters: a file of 20 kB, and 100 gigabytes."""
    agent = agent_with(tmp_path, "$1" * 10_000)

    with pytest.raises(PayloadTooLarge, match="100000000000 characters"):
        agent.expand(Template("t", ["x" * 10_000_000]))


def test_nothing_is_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(InvalidMessage, match="nothing is left"):
        expanded(tmp_path, "$1", "")


def test_the_message_says_what_it_was_made_of(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "pdf", "Open it.", scripts__run="x")
    file = write_template(tmp_path / "templates", "ask", "Ask $1 ${how}")
    agent: Agent = agent_of(skills=tmp_path / "skills", templates=tmp_path / "templates")

    asked = agent.expand(Template("ask", ["\ud800da"], {"how": "now"}))
    used = agent.expand(Skill("pdf", "the second page"))

    assert asked == UserMessage(
        content=(TextPart(text="Ask \ufffdda now"),),
        expanded_from=ExpandedFrom(
            kind="template",
            name="ask",
            digest=digest(file.read_bytes()),
            arguments=("\ufffdda",),
            named={"how": "now"},
        ),
    )
    beside = "Files of this skill, which `load_skill` reads with `file`:\n- scripts/run"
    shown = f'<skill name="pdf">\nOpen it.\n</skill>\n\n{beside}'
    assert used.content == (TextPart(text=shown), TextPart(text="the second page"))
    assert used.expanded_from == ExpandedFrom(
        kind="skill", name="pdf", digest=agent.skills["pdf"].digest, arguments=("the second page",)
    )
    assert agent.expand(Skill("pdf")).content == (TextPart(text=shown),)


def test_an_agent_keeps_what_it_read(tmp_path: Path) -> None:
    """The text and its digest belong together, whatever becomes of the file; another agent reads anew."""
    folder = write_skill(tmp_path / "skills", "pdf", "first")
    file = write_template(tmp_path / "templates", "ask", "first")
    agent: Agent = agent_of(skills=tmp_path / "skills", templates=tmp_path / "templates")
    before = agent.expand(Skill("pdf")), agent.expand(Template("ask"))
    write_skill(tmp_path / "skills", "pdf", "second")
    file.write_text("second $1")

    assert (agent.expand(Skill("pdf")), agent.expand(Template("ask"))) == before
    again: Agent = agent_of(skills=folder, templates=[file])
    assert "second" in str(again.expand(Skill("pdf"))) and again.templates["ask"].arguments == ("$1",)
    assert again.skills["pdf"].digest != agent.skills["pdf"].digest


def test_other_verbs_say_how_to_be_given_one() -> None:
    from agentlane.data.requests import prompt_messages

    with pytest.raises(InvalidMessage, match=r"not Template; give agent\.expand"):
        prompt_messages(Template("ask"))
    image = ImagePart(data="aGk=", mime_type="image/png")
    assert prompt_messages(Prompt("x", images=(image,)))[0].expanded_from is None
