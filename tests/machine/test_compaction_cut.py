"""Claim: a cut keeps what may be kept and no more, at a turn if it can, never apart a call and its result; and what the
library does by itself with it never goes round in circles."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.entries import BranchSummary, Compaction, Custom, EntryBody, StandsFor
from agentlane.data.messages import ModelIdentity, UserMessage, user
from agentlane.data.operations import CompactionPolicy
from agentlane.machine.compaction import Budgets, Cut, Piece, budgets, cut, stands_for, worth
from agentlane.machine.pairing import pairing_problem
from agentlane.machine.summaries import shown_summary
from agentlane.testing.pair import check_pairing
from tests.machine.mutants_cut import CUT_BUGS, CutBug
from tests.machine.transcripts import KINDS, Path, Step, answer, broken_rules, context_of, count, pieces_of, steps

HUGE = 10**6


def piece(body: EntryBody, tokens: int) -> Piece:
    return Piece(f"e{tokens}", body, tokens)


ASKED, ANSWERED, CALLING = user("go"), answer("done"), Path([Step("batch", 0)]).entries[0][1]
RESULT = Path([Step("batch", 0)]).entries[1][1]
LEFT, NOTE = BranchSummary(summary="s", left="x"), Custom(type="note")


# One by one.


def test_the_longest_tail_of_whole_turns_is_kept() -> None:
    pieces = [piece(body, 10) for body in (ASKED, ANSWERED, ASKED, ANSWERED, ASKED, ANSWERED)]

    found = [cut(pieces, keep) for keep in (60, 59, 40, 39, 20)]

    assert found == [None, Cut(2, False), Cut(2, False), Cut(4, False), Cut(4, False)]


def test_a_turn_that_is_too_large_is_cut_before_an_answer_and_never_before_a_result() -> None:
    pieces = [piece(body, 10) for body in (ASKED, ANSWERED, ASKED, CALLING, RESULT, CALLING, RESULT)]

    found = [cut(pieces, keep) for keep in (50, 49, 40, 39, 20, 19, 0)]

    assert found == [Cut(2, False), Cut(3, True), Cut(3, True), Cut(5, True), Cut(5, True), Cut(7, True), Cut(7, True)]


def test_a_turn_that_has_ended_may_be_summarized_whole() -> None:
    pieces = [piece(ASKED, 10), piece(ANSWERED, 10), piece(NOTE, 1)]

    assert cut(pieces, 5) == Cut(3, False), "nothing is under way"
    assert cut([piece(ASKED, 10)], 5) == Cut(1, False), "and nothing was begun"


def test_messages_that_are_not_answered_are_kept_and_nothing_besides() -> None:
    pieces = [piece(body, tokens) for body, tokens in ((ASKED, 1), (ANSWERED, 1), (ASKED, 500), (ASKED, 500))]

    assert cut(pieces, 10, unanswered=2) == Cut(2, False)
    assert cut(pieces, 10, unanswered=1) == Cut(3, False)
    assert cut(pieces[2:], 10, unanswered=2) is None, "there is nothing else"
    assert cut(pieces, 1001, unanswered=2) == Cut(2, False), "the answer alone would fit, but not its turn"


def test_messages_of_users_side_by_side_are_one_turn() -> None:
    bodies = (ASKED, ANSWERED, LEFT, NOTE, ASKED, ASKED, ANSWERED)
    pieces = [piece(body, 10) for body in bodies]

    assert cut(pieces, 50) == Cut(2, False)
    assert cut(pieces, 49) == Cut(6, True)


def test_what_an_application_shows_is_no_turn() -> None:
    pieces = [piece(body, 10) for body in (ASKED, CALLING, NOTE, RESULT, NOTE, ANSWERED, ASKED, ANSWERED)]

    assert cut(pieces, 39) == Cut(6, False)
    assert cut(pieces, 19) == Cut(7, True)


# Whatever a path holds.


@given(steps=steps, unanswered=st.integers(0, 2), keep=st.integers(0, 60))
def test_every_cut_of_every_path_follows_the_rules(steps: list[Step], unanswered: int, keep: int) -> None:
    pieces = pieces_of(Path(steps).entries)
    unanswered = min(unanswered, sum(isinstance(each.body, UserMessage) for each in pieces))

    for keep_tokens in {keep, *(sum(each.tokens for each in pieces[index:]) for index in range(len(pieces)))}:
        found = cut(pieces, keep_tokens, unanswered)

        assert broken_rules(pieces, keep_tokens, unanswered, found) == [], (found, pieces)
        assert found == cut(tuple(pieces), keep_tokens, unanswered)


@given(steps=steps, keep=st.integers(0, 60))
def test_what_is_shown_behind_a_cut_is_the_summary_and_the_whole_tail(steps: list[Step], keep: int) -> None:
    entries = Path(steps).entries
    before, pieces = context_of(entries), pieces_of(entries)
    found = cut(pieces, keep)
    if found is None:
        return
    kept_from = pieces[found.index].id if found.index < len(pieces) else None

    after = context_of([*entries, ("c", Compaction(summary="so far", kept_from=kept_from, tokens_before=0))])

    assert after.pieces(count) == pieces[found.index :], "nothing is lost, added or in another order"
    shown = after.view()
    assert shown[0] == shown_summary("so far")
    assert pairing_problem(shown) is None and check_pairing(shown) == []
    summarized = before.shown_between(pieces[0].id, pieces[found.index - 1].id)
    assert len(summarized) + len(shown) == len(before.view()) + 1
    assert pairing_problem(summarized) is None, "what is summarized has its results too"


def explored(times: int) -> list[list[Piece]]:
    """The pieces of paths that are drawn always the same."""
    draw = Random(7)
    paths = (
        Path([Step(draw.choice(KINDS), draw.choice((0, 1, 2, 3, 5, 40))) for _ in range(draw.randint(1, 9))])
        for _ in range(times)
    )
    return [pieces_of(path.entries) for path in paths]


@pytest.mark.parametrize("bug", CUT_BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found(bug: CutBug) -> None:
    for pieces in explored(200):
        users = sum(isinstance(each.body, UserMessage) for each in pieces)
        for keep in range(0, 24, 3):
            for unanswered in range(min(users, 2) + 1):
                if pieces and broken_rules(pieces, keep, unanswered, bug.cut(pieces, keep, unanswered)):
                    return
    pytest.fail(f"nothing shows that {bug.name}")


# What a summary stands for.

OURS, OTHERS = ModelIdentity(provider="p", name="m"), ModelIdentity(provider="p", name="n")


def said_by(model: ModelIdentity | None) -> Piece:
    body = answer("x")
    return piece(body if model is None else body.__class__(content=body.content, stop_reason="stop", model=model), 1)


def test_a_summary_stands_for_messages_of_users_and_answers_by_model() -> None:
    asked = piece(ASKED, 1)
    first = stands_for([asked, said_by(OURS), piece(LEFT, 1), said_by(OTHERS), piece(NOTE, 1)], None)
    second = stands_for([said_by(OURS), said_by(None)], first)
    third = stands_for([said_by(OURS), asked, piece(RESULT, 1)], second)

    assert first == StandsFor(users=1, answers={"p:m": 1, "p:n": 1}, answers_since={"p:m": 1, "p:n": 1})
    assert second == StandsFor(users=1, answers={"p:m": 2, "p:n": 1, "": 1}, answers_since={"p:m": 2, "p:n": 1, "": 1})
    assert third == StandsFor(users=2, answers={"p:m": 3, "p:n": 1, "": 1}, answers_since={})
    assert first.answers == {"p:m": 1, "p:n": 1}, "what an earlier one says is not changed"


@given(steps=steps, at=st.integers(0, 14))
def test_what_two_summaries_in_a_row_stand_for_is_what_one_does(steps: list[Step], at: int) -> None:
    pieces = pieces_of(Path(steps).entries)

    assert stands_for(pieces[at:], stands_for(pieces[:at], None)) == stands_for(pieces, None)


# What is done by itself.

turn_sizes = st.lists(
    st.tuples(st.sampled_from((1, 5, 30, 200)), st.lists(st.sampled_from((0, 1, 7, 60, 400)), max_size=4)),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize("watches", [True, False], ids=["new tokens are looked at", "they are not"])
@given(turns=turn_sizes, keep=st.sampled_from((0, 3, 40, 250)), base=st.sampled_from((0, 300, 990)))
def test_compactions_never_go_round_in_circles(
    watches: bool, turns: list[tuple[int, list[int]]], keep: int, base: int
) -> None:
    """Looked at before each request, as the driver does: a user message of so many tokens, then answers with calls."""
    threshold, summary, least = 1_000, 20, max(1, keep // 4)
    pieces: list[Piece] = []
    total = new = added = made = tokens_cut = biggest = 0
    for asked, results in turns:
        for index, body_tokens in enumerate((asked, *results)):
            if index:
                pieces += [piece(CALLING, 1), piece(RESULT, body_tokens)]
            else:
                pieces.append(piece(ASKED, body_tokens))
            size = body_tokens + bool(index)
            added, new, biggest = added + size, new + size, max(biggest, size)
            total = base + summary * bool(made) + sum(each.tokens for each in pieces)
            found = cut(pieces, keep, unanswered=not index) if total > threshold else None
            gone = 0 if found is None else sum(each.tokens for each in pieces[: found.index])
            if found is not None and worth(gone, keep, (new if made else None) if watches else None):
                assert gone >= least and (not watches or not made or new >= least)
                pieces = pieces[found.index :]
                made, new, tokens_cut = made + 1, 0, tokens_cut + gone
                assert sum(each.tokens for each in pieces) <= max(keep, asked if not index else 0)
                assert not worth(sum(each.tokens for each in pieces[:0]), keep), "not twice at the same place"
            total = base + summary * bool(made) + sum(each.tokens for each in pieces)
            assert total <= max(threshold, base + summary + keep + 2 * least + 2 * biggest)
        pieces.append(piece(ANSWERED, 1))
        added, new = added + 1, new + 1
    assert made * least <= tokens_cut <= added, "each takes away what no other did, so there are few"


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=20), keep=st.integers(0, 300))
def test_nothing_is_cut_again_before_something_new_came(sizes: list[int], keep: int) -> None:
    pieces = [piece(body, size) for size in sizes for body in (ASKED, ANSWERED)]
    found = cut(pieces, keep)

    assert found is None or cut(pieces[found.index :], keep) is None


def test_what_is_worth_a_compaction() -> None:
    assert [worth(gone, 100) for gone in (24, 25)] == [False, True]
    assert [worth(25, 100, new) for new in (24, 25)] == [False, True]
    assert [worth(gone, 0) for gone in (0, 1)] == [False, True]


# What a policy comes to.


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (1_000_000, Budgets(983_616, 20_000, 16_384, 978_520, 4_096)),
        (200_000, Budgets(183_616, 20_000, 16_384, 178_520, 4_096)),
        (8_192, Budgets(6_144, 2_048, 2_048, 3_096, 2_048)),
        (1_000, Budgets(750, 250, 250, 250, 250)),
        (1, Budgets(1, 0, 0, 0, 1)),
        (None, Budgets(None, 20_000, 16_384, None, 4_096)),
    ],
)
def test_the_budgets_of_a_window(window: int | None, expected: Budgets) -> None:
    assert budgets(CompactionPolicy(), window) == expected


def test_the_models_own_window_wins_over_the_policys() -> None:
    policy = CompactionPolicy(context_tokens=1_000)

    assert budgets(policy, None).threshold == 750 and budgets(policy, 4_000).threshold == 3_000


@given(
    window=st.integers(1, 2_000_000),
    policy=st.builds(
        CompactionPolicy,
        reserve_tokens=st.integers(0, 10**6),
        keep_tokens=st.integers(0, 10**6),
        max_summary_tokens=st.integers(1, 10**6),
    ),
)
def test_budgets_leave_room_whatever_is_asked(window: int, policy: CompactionPolicy) -> None:
    found = budgets(policy, window)

    assert found.threshold is not None and found.shown is not None
    assert 0 < found.threshold == window - found.reserve
    assert found.shown >= 0 and found.summary >= 1 and found.keep >= 0
    if window >= 4:
        assert found.keep + found.summary < found.threshold, "what is left behind a compaction is not due for another"
        assert found.shown + found.summary + found.reserve <= window and found.shown > 0
