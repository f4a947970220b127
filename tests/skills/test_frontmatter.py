"""Claim: what is read of a frontmatter is what YAML says it is, and what would be no text there is refused by its line.

The samples were compared with what a YAML library makes of them, and so were a hundred thousand made at random; that
library is not a dependency, so what it said is written down here.
"""

from __future__ import annotations

import pytest

from agentlane.skills.frontmatter import Malformed, decoded, read_frontmatter

WANTED = ("name", "description")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("description: plain words, with a comma", "plain words, with a comma"),
        ("description:   spaces around   ", "spaces around"),
        ("description: a#b is no comment", "a#b is no comment"),
        ("description: nor is this\n  # but this is", "nor is this"),
        ("description: at 12:30, http://x.org/?a=b", "at 12:30, http://x.org/?a=b"),
        ("description: over\n  several\n\n    lines", "over several lines"),
        ("description:\n  from the next line on", "from the next line on"),
        ("description: # nothing but a comment\n  and a text", "and a text"),
        ("description: |\n  a block # with no comment\n   : of lines", "a block # with no comment : of lines"),
        ("description: >-  # chomped\n  folded\n  words", "folded words"),
        ("description: |2\n    two are its indent", "two are its indent"),
        ('description: "it: is # quoted" # and this is not', "it: is # quoted"),
        ('description: "a \\"b\\" \\u00e9\\x41\\n\\\\"', 'a "b" éA \\'),
        ('description: "over\n  two lines"', "over two lines"),
        ("description: 'it''s: so'", "it's: so"),
        ("description: true", "true"),
        ("description: 12", "12"),
        ("description: null", ""),
        ("description:", ""),
        ("description: ''", ""),
    ],
)
def test_a_text_is_read_as_yaml_reads_it(written: str, text: str) -> None:
    found = read_frontmatter(f"---\nname: x\n{written}\n---\nbody", WANTED, required=True)

    assert found.texts == {"name": "x", "description": text}
    assert found.lines == {"name": 2, "description": 3}
    assert found.body == "body"


@pytest.mark.parametrize(
    ("written", "line", "why"),
    [
        ("description: use it: always", 3, "': '"),
        ("description: ends with a colon:", 3, "': '"),
        ("description: [a, b]", 3, "'['"),
        ("description: {a: b}", 3, "': '"),
        ("description: *alias", 3, "'*'"),
        ("description: &anchor x", 3, "'&'"),
        ("description: !!str x", 3, "'!'"),
        ("description: @at", 3, "'@'"),
        ("description: - x", 3, "'-'"),
        ("description:\n- x", 4, "list"),
        ("description:\n  - x", 4, "'-'"),
        ("description:\n  a: x", 4, "': '"),
        ("description: a # comment\n  b", 3, "begins a comment"),
        ("description: a\n  # comment\n  b", 4, "begins a comment"),
        ("description: for issue #12, and more", 3, "begins a comment"),
        ("description: a\n  for issue #12", 4, "begins a comment"),
        ('description: "open', 3, "never closed"),
        ('description: "a" b', 3, "'b'"),
        ('description: "\\q"', 3, "\\q"),
        ('description: "\\ud800"', 3, "\\ud800"),
        ("description: | text", 3, "block of lines"),
        ("description: |\n    a\n  b", 5, "indented less"),
        ("description:\n\ttabbed", 4, "tab"),
        ("  indented: from the start", 3, "': '"),
        ("no colon in it", 3, "'no colon in it'"),
        ("]", 3, "']'"),
        ("description: [\n]", 3, "'['"),
        ("nor: a value\n]", 4, "']'"),
        ("http://here", 3, "'http://here'"),
        ("name: y", 3, "line 2"),
        ("description: a\ndescription: b", 4, "line 3"),
    ],
)
def test_what_is_no_text_is_refused_by_its_line(written: str, line: int, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_frontmatter(f"---\nname: x\n{written}\n---\nbody", WANTED, required=True)

    assert refused.value.line == line
    assert why in refused.value.why


@pytest.mark.parametrize(
    "other",
    [
        '"quoted: key": 1',
        "'it''s': 1",
        "größe: 1",
        "$schema: x",
        "x/y: 1",
        "a:b: 1",
        "<<: *base",
        "(a): 1",
        "allowed-tools: [\n  Read,\n  Bash\n]",
        "hooks: {\n  a: 1\n}  ",
    ],
)
def test_keys_of_any_kind_are_passed_over(other: str) -> None:
    found = read_frontmatter(f"---\nname: x\n{other}\ndescription: d\n---\nbody", WANTED, required=True)

    assert found.texts == {"name": "x", "description": "d"}
    assert found.lines["description"] == 4 + other.count("\n")


def test_keys_of_others_are_passed_over_however_they_are_made() -> None:
    head = (
        'license: "MIT" extra\nmetadata:\n  a: [1, 2\n  b: {c: !x *y\nallowed-tools:\n- Bash(git:*)\n'
        "# a comment\nhooks: |\n  name: not this one\nname: x\nUse when: there are spaces"
    )

    assert read_frontmatter(f"---\n{head}\n---", WANTED, required=True).texts == {"name": "x"}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("name: x\n", 1, "first line"),
        ("", 1, "first line"),
        ("\n---\nname: x\n---\n", 1, "first line"),
        ("---\nname: x\n", 1, "ends it"),
        ("---\n  name: x\n---\n", 2, "belongs to no key"),
    ],
)
def test_a_frontmatter_has_a_begin_and_an_end(text: str, line: int, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_frontmatter(text, WANTED, required=True)

    assert (refused.value.line, why in refused.value.why) == (line, True)


def test_the_body_is_what_stands_behind_with_its_line() -> None:
    found = read_frontmatter("---\nname: x\n---\n\n\n# Head\n\n---\ntext \n\n", WANTED, required=True)

    assert (found.body, found.body_line) == ("# Head\n\n---\ntext", 6)


def test_without_a_frontmatter_all_is_body() -> None:
    assert read_frontmatter("\nhello\n", WANTED, required=False)[2:] == ("hello", 2)


def test_bytes_become_text_with_one_kind_of_line_end() -> None:
    assert decoded(b"\xef\xbb\xbf---\r\nname: x\r\n---\r\n") == "---\nname: x\n---\n"
    with pytest.raises(Malformed) as refused:
        decoded(b"one\ntwo\nthree \xff\n")
    assert refused.value.line == 3
