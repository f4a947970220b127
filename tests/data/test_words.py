"""Claim: a text has the words that a person would look for, however it is written, and never anything else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.words import WORD_CHARS_MAX, placed_words, wanted_words, words_of

TEXT = (
    st.text(alphabet=st.sampled_from("aZ9_-'\"* .é́İßﬁ①½東京がﾞﾊ한글ไทยй\u00ad\u200d🦊\0\n\ud800"), max_size=40)
    | st.text()
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("?! -- * \"'", []),
        ("The red_fox's 2nd den", ["the", "red", "fox", "s", "2nd", "den"]),
        ("Café CAFÉ cafe\u0301 ﬁn ＲＥＤ", ["cafe", "cafe", "cafe", "fin", "red"]),
        ("STRASSE straße İstanbul", ["strasse", "strasse", "istanbul"]),
        ("Ёлка ёлка елка", ["елка"] * 3),
        ("soft\u00adhyphen zero\u200cwidth \ufeffmark", ["softhyphen", "zerowidth", "mark"]),
        ("\u00ad \u200d", []),
        ("日本語", ["日", "本", "語", "日本", "本語"]),
        ("AI東京x", ["ai", "東", "京", "東京", "x"]),
        ("がか", ["が", "か", "がか"]),
        ("서울에서", ["서", "울", "에", "서", "서울", "울에", "에서"]),
        ("हिन्दी", ["हिनदी"]),
        ("⑴ ½", ["1", "1\u20442"]),
        ("a\0b\ud800c\u2028d", ["a", "b", "c", "d"]),
        ("x" * 100, ["x" * WORD_CHARS_MAX]),
        ("é" * 100, ["e" * WORD_CHARS_MAX]),
    ],
)
def test_the_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("red RED fox", ["red", "fox"]),
        ("東", ["東"]),
        ("東京都", ["東京", "京都"]),
        ("fox AND (NOT red*) ^NEAR", ["fox", "and", "not", "red", "near"]),
    ],
)
def test_what_is_looked_for(text: str, words: list[str]) -> None:
    assert wanted_words(text) == words


@given(TEXT)
def test_a_word_has_nothing_that_means_anything_to_a_database(text: str) -> None:
    for word in words_of(text):
        assert word and len(word) <= 2 * WORD_CHARS_MAX
        assert not re.search(r"[\x00-/:-@\[-`{-\x7f]", word) and word == word.encode().decode()


@given(TEXT)
def test_words_and_their_places_agree(text: str) -> None:
    placed = list(placed_words(text))

    assert [each.word for each in placed] == words_of(text)
    assert all(0 <= each.start < each.end <= len(text) for each in placed)
    assert all(words_of(text[each.start : each.end])[-1:] == [each.word] for each in placed)


@given(TEXT)
def test_what_a_text_holds_is_found_by_it(text: str) -> None:
    assert {*wanted_words(text)} <= {*words_of(text)}


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_plain_texts_take_a_shorter_way_to_the_same_words(text: str) -> None:
    assert words_of(text) == [each.word for each in placed_words(text)]
    assert words_of(text) == words_of(text + " é")[:-1]
