"""Claim: every name and id that is sent is one that a provider takes, is its own, and leads back to what was meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentlane.models.sent_names import SentIds, SentNames, fits

_TEXTS = st.text(alphabet="ab_.:/@\x00é", max_size=6) | st.text(max_size=90)


def test_names_that_fit_go_as_they_are() -> None:
    names = SentNames(["read_file", "a" * 64])

    assert [names.sent("read_file"), names.sent("a" * 64)] == ["read_file", "a" * 64]


def test_a_made_up_name_never_takes_the_place_of_a_real_one() -> None:
    made = SentNames().sent("a.b")
    names = SentNames(["a.b", made])

    assert names.sent(made) == made
    assert names.given(made) == made
    assert names.given(names.sent("a.b")) == "a.b" != made


@given(st.lists(_TEXTS, max_size=8), st.integers(min_value=16, max_value=64))
def test_names_fit_are_distinct_and_lead_back(given_names: list[str], length_max: int) -> None:
    names = SentNames(given_names, length_max=length_max)
    sent = [names.sent(name) for name in given_names]

    assert all(fits(name, length_max) for name in sent)
    assert len(set(sent)) == len(set(given_names))
    assert [names.given(name) for name in sent] == given_names


@given(st.lists(_TEXTS, max_size=8), st.integers(min_value=16, max_value=64))
def test_ids_fit_and_are_distinct_even_where_the_given_ones_are_not(given_ids: list[str], length_max: int) -> None:
    ids = SentIds(length_max=length_max)
    calls = []
    for id in given_ids:
        calls.append(ids.call(id))
        assert ids.result(id) == calls[-1], "the result belongs to the latest call with that id"

    assert all(fits(id, length_max) for id in calls)
    assert len(set(calls)) == len(calls)


@given(st.lists(_TEXTS, max_size=8))
def test_what_comes_later_changes_nothing_of_what_was_sent(given_ids: list[str]) -> None:
    whole, half = SentIds(), SentIds()

    assert [whole.call(id) for id in given_ids][: len(given_ids) // 2] == [
        half.call(id) for id in given_ids[: len(given_ids) // 2]
    ]
