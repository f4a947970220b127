"""Claim: which text an entry has, how well it matches and what is shown of it follow from the entry alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data import codec
from agentlane.data.entries import BranchSummary, Compaction, Custom, EntryBody
from agentlane.data.messages import (
    AssistantMessage,
    ImagePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    user,
)
from agentlane.data.search import (
    HITS_MAX,
    SNIPPET_CHARS,
    TEXT_CHARS_MAX,
    WORDS_MAX,
    Search,
    checked_search,
    hit_of,
    score_of,
    snippet_of,
    text_of,
    total_of,
)
from agentlane.data.words import words_of
from agentlane.errors import InvalidMessage

PICTURE = ImagePart(data="cmVk", mime_type="image/png")


def wanted(text: str, **options: Any) -> Search:
    return checked_search(text, **{"types": None, "since": None, "until": None, "limit": 20} | options)


def said(text: str) -> bytes:
    return codec.encode(user(text))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (user("red fox", [PICTURE]), "red fox"),
        (user("", [PICTURE]), ""),
        (
            AssistantMessage(
                content=(
                    ThinkingPart(text="hidden"),
                    TextPart(text="one"),
                    ToolCallPart(id="c", name="read", arguments={"path": "hidden"}),
                    TextPart(text="two"),
                ),
                stop_reason="tool_calls",
            ),
            "one\ntwo",
        ),
        (
            ToolResultMessage(
                call_id="hidden", name="hidden", content=(TextPart(text="a"), PICTURE), details={"x": "hidden"}
            ),
            "a",
        ),
        (
            Custom(type="hidden", data={"hidden": ["a", {"hidden": "b"}, 3, None, True, "c"], "hidden2": "d"}),
            "a\nb\nc\nd",
        ),
        (Custom(type="hidden", data="leaf"), "leaf"),
        (Custom(type="hidden"), ""),
        (Compaction(summary="a\nb", kept_from="hidden", tokens_before=7), "a\nb"),
        (BranchSummary(summary="elsewhere", left="hidden"), "elsewhere"),
    ],
)
def test_the_text_of_an_entry(body: EntryBody, text: str) -> None:
    assert text_of(codec.encode(body)) == text


@pytest.mark.parametrize("payload", [b"", b"{", b'"red"', b'{"role":"later","text":"red"}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_has_no_text_and_raises_nothing(payload: bytes) -> None:
    assert text_of(payload) == ""
    assert total_of(wanted("red"), payload) == 0


def test_a_text_without_end_is_searched_so_far() -> None:
    text = "x" * (TEXT_CHARS_MAX - 5) + " red fox"

    assert total_of(wanted("red"), said(text)) > 0
    assert total_of(wanted("fox"), said(text)) == 0


def test_the_score_is_the_documented_one() -> None:
    text = "red fox, red dog " + "and " * 96  # 100 words

    assert total_of(wanted("red"), said(text)) == 100_000_000 * 2 // (200 + 50 + 100)
    assert total_of(wanted("red dog"), said(text)) == 100_000_000 * 2 // 350 + 100_000_000 * 1 // 250
    assert score_of(wanted("red dog"), total_of(wanted("red dog"), said(text))) == pytest.approx(
        (200 / 350 + 100 / 250) / 2, abs=1e-5
    )
    assert total_of(wanted("red cat"), said(text)) == 0


def test_only_the_last_word_may_be_a_beginning() -> None:
    payload = said("the redder foxes")

    assert total_of(wanted("red"), payload) == 0
    assert total_of(wanted("red", prefix=True), payload) > 0
    assert total_of(wanted("foxes red", prefix=True), payload) > 0
    assert total_of(wanted("red foxes", prefix=True), payload) == 0


@given(st.text(), st.lists(st.sampled_from(["red", "é", "e", "ﬁ", "fi", "日", "a", "0", "x" * 70])))
def test_a_look_at_the_bytes_never_hides_a_hit(text: str, more: list[str]) -> None:
    text = text.encode(errors="replace").decode() + " ".join(more)
    words = words_of(text)

    for word in {*words[:5], *more}:
        search = wanted(word)
        if search.words:
            there = all(words.count(each.word) for each in search.words)
            assert bool(total_of(search, said(text))) is there


@pytest.mark.parametrize(
    ("text", "options", "path"),
    [
        (None, {}, "text"),
        (b"red", {}, "text"),
        ("red", {"types": "user"}, "types"),
        ("red", {"types": ["nobody"]}, "types"),
        ("red", {"since": "yesterday"}, "since"),
        ("red", {"until": 1.5}, "until"),
        ("red", {"since": True}, "since"),
        ("red", {"limit": -1}, "limit"),
        ("red", {"limit": HITS_MAX + 1}, "limit"),
        ("red", {"limit": None}, "limit"),
        ("red", {"prefix": 1}, "prefix"),
    ],
)
def test_what_is_no_search_is_refused(text: Any, options: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        wanted(text, **options)
    assert caught.value.details["path"] == path


def test_only_so_many_words_count() -> None:
    assert len(wanted(" ".join(f"w{n}" for n in range(1_000))).words) == WORDS_MAX


def test_a_snippet_shows_where_most_of_the_words_are() -> None:
    text = "red " + "word " * 60 + "here the\n\tred fox\0 jumps " + "word " * 60

    shown, marks = snippet_of(wanted("fox red"), text)

    assert [shown[start:end] for start, end in marks] == ["red", "fox"]
    assert "here the  red fox  jumps" in shown and shown.startswith("…word") and shown.endswith("word…")
    assert len(shown) <= SNIPPET_CHARS + 2


@pytest.mark.parametrize(
    ("text", "look_for", "shown"),
    [
        ("red", "red", "[red]"),
        ("Ein CAFÉ, bitte", "cafe", "Ein [CAFÉ], bitte"),
        ("in 東京都に", "東京都", "in [東京都]に"),
        ("red,fox", "red fox", "[red],[fox]"),
        ("no such word", "red", "no such word"),
        ("", "red", ""),
        ("x" * 300, "x" * 300, "[" + "x" * SNIPPET_CHARS + "]…"),
    ],
)
def test_marks_are_where_the_words_are(text: str, look_for: str, shown: str) -> None:
    snippet, marks = snippet_of(wanted(look_for), text)

    for start, end in reversed(marks):
        snippet = f"{snippet[:start]}[{snippet[start:end]}]{snippet[end:]}"
    assert snippet == shown


@given(st.text(max_size=800), st.integers(0, 700), st.sampled_from(["red", "red fox", "東京"]))
def test_every_snippet_holds_a_word_that_was_found(text: str, place: int, look_for: str) -> None:
    text = f"{text[:place]} {look_for} {text[place:]}"
    search = wanted(look_for)

    snippet, marks = snippet_of(search, text)

    found = {word for start, end in marks for word in words_of(snippet[start:end])}
    assert {each.word for each in search.words} <= found
    assert len(snippet) <= SNIPPET_CHARS + 2 and not any(char in snippet for char in "\n\r\t\0")


def test_a_hit_tells_what_its_entry_is() -> None:
    def hit(kind: str, body: EntryBody) -> Any:
        search, payload = wanted("red"), codec.encode(body)
        total = total_of(search, payload)
        return hit_of(search, session_id="s", entry_id="e", kind=kind, at=5, payload=payload, total=total)

    message, custom = hit("user", user("a red fox")), hit("custom", Custom(type="note", data=["red"]))

    assert (message.type, message.role, message.at, message.snippet, message.marks) == (
        *("message", "user", 5, "a red fox"),
        ((2, 5),),
    )
    assert (custom.type, custom.role, custom.entry_id, custom.session_id) == ("custom", None, "e", "s")
    for kind, body in (
        ("compaction", Compaction(summary="red", kept_from=None, tokens_before=1)),
        ("branch_summary", BranchSummary(summary="red", left="e")),
    ):
        summary = hit(kind, body)
        assert (summary.type, summary.role, summary.snippet) == (kind, None, "red")
    assert message.score == pytest.approx(100 / 153, abs=1e-5) and 0 < message.score < 1
