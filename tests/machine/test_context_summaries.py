"""Claim: behind summaries the model is shown what the newest keeps and what came later, however it was read."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.entries import BranchSummary, Compaction, Custom, EntryBody, StandsFor
from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolResultMessage, UserMessage, user
from agentlane.data.usage import Usage
from agentlane.ids import call_id
from agentlane.machine.context import NOT_AVAILABLE, ModelContext, begins_anew
from agentlane.machine.pairing import pairing_problem
from agentlane.machine.summaries import shown_branch_summary, shown_summary
from agentlane.testing.pair import check_pairing
from tests.machine.shown_paths import counted, messages_of, projected, shown_of
from tests.machine.test_context import CALLS, IDS, STOPS, Placed, asking, entry_id, missing, path, result, saying


def compaction(kept_from: str | None, summary: str = "so far", **more: object) -> Compaction:
    return Compaction(summary=summary, kept_from=kept_from, tokens_before=1, **more)  # type: ignore[arg-type]


def context_of(entries: Sequence[Placed]) -> ModelContext:
    context = ModelContext(projected)
    for each in entries:
        context.add(*each)
    return context


def one(_: Message) -> int:
    return 1


def length(message: Message) -> int:
    return sum(len(part.text) if isinstance(part, TextPart) else 7 for part in message.content) + 1


# What is shown.


def test_a_compaction_shows_its_summary_then_what_it_keeps_then_what_comes() -> None:
    before = path(user("a"), saying("A"), user("b"), asking("x"), result("x"), saying("B"))

    context = context_of([*before, Placed("c", compaction(before[2].id)), Placed("n", user("next"))])

    tail = [user("b"), asking("x"), result("x"), saying("B"), user("next")]
    assert list(context.view()) == [shown_summary("so far"), *tail]
    assert context.earlier == ("c", compaction(before[2].id))


def test_a_compaction_that_keeps_nothing_shows_its_summary_alone() -> None:
    assert list(context_of([*path(user("a"), saying("A")), Placed("c", compaction(None))]).view()) == [
        shown_summary("so far")
    ]


def test_only_the_newest_compaction_counts_and_others_in_its_tail_show_nothing() -> None:
    before = path(user("a"), saying("A"), user("b"), saying("B"), user("c"), saying("C"))
    first = Placed("first", compaction(before[0].id, "the first"))
    entries = [*before[:4], first, *before[4:], Placed("second", compaction(before[2].id, "the second"))]

    assert messages_of(entries) == [shown_summary("the second"), user("b"), saying("B"), user("c"), saying("C")]
    assert list(context_of(entries).view()) == messages_of(entries)


def test_what_a_compaction_keeps_may_have_been_kept_by_the_one_before() -> None:
    before = path(user("a"), saying("A"), user("b"), saying("B"))
    entries = [
        *before,
        Placed("first", compaction(before[2].id)),
        Placed("n", user("n")),
        Placed("second", compaction(before[3].id)),
    ]

    assert list(context_of(entries).view()) == [shown_summary("so far"), saying("B"), user("n")]
    assert list(context_of(entries[3:]).view()) == list(context_of(entries).view()), "read from there on"


def test_where_the_kept_tail_was_not_taken_only_the_summary_is_shown() -> None:
    context = context_of([*path(user("a"), saying("A")), Placed("c", compaction("elsewhere"))])

    assert list(context.view()) == [shown_summary("so far")]
    assert context.pieces(one) == [] and context.tokens(one) == 1


def test_what_an_earlier_compaction_took_away_does_not_come_back() -> None:
    before = path(user("a"), saying("A"), user("b"))
    entries = [*before, Placed("first", compaction(before[2].id)), Placed("second", compaction(before[0].id))]

    assert list(context_of(entries).view()) == [shown_summary("so far")]


def test_ids_of_calls_begin_anew_behind_a_compaction() -> None:
    before = path(user("a"), asking("x"), result("x"), user("b"), asking("x"), result("x"))
    assert list(context_of(before).view())[4] != asking("x")

    context = context_of([*before, Placed("c", compaction(before[3].id))])

    assert list(context.view())[2:] == [asking("x"), result("x")]


def test_a_batch_that_is_open_where_it_is_kept_takes_its_results_behind_the_compaction() -> None:
    before = path(user("a"), asking("x", "y"), result("x"))
    context = context_of([*before, Placed("c", compaction(before[1].id))])

    assert list(context.view())[1:] == [asking("x", "y"), result("x"), missing("y")]
    found = context.open_calls()
    assert found is not None and found[0] == before[1].id and [call.id for call in found[1]] == ["y"]
    context.add("late", result("y"))
    assert list(context.view())[1:] == [asking("x", "y"), result("x"), result("y")]


def test_a_result_whose_call_is_in_the_summary_is_left_out() -> None:
    context = context_of([*path(user("a"), asking("x")), Placed("c", compaction(None)), Placed("r", result("x"))])

    assert list(context.view()) == [shown_summary("so far")] and context.open_calls() is None


def test_views_of_before_a_compaction_stay_as_they_were() -> None:
    context = context_of(path(user("a"), saying("A")))
    view = context.view()

    context.add("c", compaction(None))
    context.add("n", user("n"))

    assert list(view) == [user("a"), saying("A")]
    assert list(context.view()) == [shown_summary("so far"), user("n")]


def test_the_summary_of_a_branch_is_shown_where_it_stands_and_ends_an_open_batch() -> None:
    context = context_of(path(user("a"), asking("x"), BranchSummary(summary="gone", left="l"), user("b")))

    assert list(context.view()) == [user("a"), asking("x"), missing("x"), shown_branch_summary("gone"), user("b")]
    assert context.open_calls() is None


def test_a_projected_entry_waits_inside_a_batch_until_behind_the_results() -> None:
    entries = path(user("a"), asking("x", "y"), Custom(type="note", data="N"), result("y"), result("x"), user("b"))
    context = context_of(entries[:4])

    open_yet = [user("a"), asking("x", "y"), missing("x"), result("y"), user("N")]
    assert list(context.view()) == open_yet
    assert context.open_calls() is not None
    assert [(each.id, each.tokens) for each in context.pieces(one)] == [
        (entries[0].id, 1),
        (entries[1].id, 2),  # with the result that is missing behind it
        (entries[3].id, 1),
        (entries[2].id, 1),
    ]
    for each in entries[4:]:
        context.add(*each)
    assert list(context.view()) == [user("a"), asking("x", "y"), result("x"), result("y"), user("N"), user("b")]


def test_each_entry_of_an_application_is_asked_about_once() -> None:
    asked: list[str] = []

    def project(id: str, custom: Custom) -> UserMessage | None:
        asked.append(id)
        return projected(id, custom)

    context = ModelContext(project)
    entries = path(Custom(type="note", data="N"), Custom(type="other"), Custom(type="note", data=""))
    for each in [*entries, Placed("c", compaction(entries[0].id)), Placed("d", compaction(entries[0].id))]:
        context.add(*each)

    assert asked == [each.id for each in entries]
    assert list(context.view()) == [shown_summary("so far"), user("N")]
    assert [each.id for each in context.pieces(one)] == [entries[0].id]


def test_what_shows_nothing_is_not_held() -> None:
    class Data:
        pass

    data = Data()
    gone = weakref.ref(data)
    context = ModelContext(lambda _id, _custom: None)
    context.add(entry_id(1), Custom(type="note", data=data))
    del data

    assert gone() is None and context.pieces(one) == []


@pytest.mark.parametrize(
    ("body", "anew"),
    [
        (BranchSummary(summary="s", left="l"), True),
        (compaction(None), True),
        (compaction("k"), False),
        (Custom(type="note"), False),
        (user("u"), True),
        (saying("a"), True),
        (saying("a", "error"), False),
        (result("x"), False),
    ],
)
def test_what_tells_that_no_call_before_it_is_open(body: EntryBody, anew: bool) -> None:
    assert begins_anew(body) is anew


def test_what_the_summary_stands_for_is_that_of_the_newest() -> None:
    context = context_of(path(user("a")))
    assert context.stands_for is None and context.earlier is None

    context.add("c", compaction(None, stands_for=StandsFor(users=3)))
    context.add("d", compaction(None, stands_for=StandsFor(users=5, answers={"p:m": 2})))

    assert context.stands_for == StandsFor(users=5, answers={"p:m": 2})


# Tokens.


def test_each_message_is_counted_once_however_often_it_is_asked() -> None:
    counts: Counter[str] = Counter()

    def count(message: Message) -> int:
        counts[_text_of(message)] += 1
        return length(message)

    context = ModelContext()
    for number in range(50):
        context.add(entry_id(number), user(f"said {number}"))
        assert context.tokens(count) == sum(map(length, context.view()))
    context.pieces(count)

    assert len(counts) == 50 and set(counts.values()) == {1}
    context.add("c", compaction(entry_id(48)))
    for _ in range(3):
        assert context.tokens(count) == sum(map(length, context.view()))
    assert counts["said 47"] == 1 and counts["said 48"] == 2, "what is kept is counted once more"
    assert counts[_text_of(shown_summary("so far"))] == 1
    assert context.tokens(one) == 3 and context.tokens(count) == sum(map(length, context.view()))


def test_looking_at_messages_and_views_of_an_open_batch_keep_the_counts() -> None:
    counted_messages: list[Message] = []

    def count(message: Message) -> int:
        counted_messages.append(message)
        return 10**30

    context = context_of(path(user("a"), asking("x", "y"), result("x")))
    assert context.tokens(count) == 4 * 10**30
    context.shown_between(entry_id(1), entry_id(2))
    context.pieces(count)
    context.tokens(count)

    assert counted_messages.count(user("a")) == counted_messages.count(asking("x", "y")) == 1


def test_the_provider_is_believed_from_the_newest_answer_behind_the_compaction_on() -> None:
    told = AssistantMessage(
        content=(TextPart(text="A"),),
        stop_reason="stop",
        usage=Usage(input_tokens=100, output_tokens=20, cache_read_tokens=90),
    )
    untold = AssistantMessage(content=(TextPart(text="B"),), stop_reason="stop", usage=Usage(output_tokens=3))
    context = context_of(path(user("a"), told, user("b"), untold))
    assert context.known_tokens == (120, 2), "input counts what was read from a cache already"
    assert context.tokens(length, start=2) == length(user("b")) + length(untold)

    context.add("c", compaction(entry_id(2)))
    assert context.known_tokens is None, "what it was told of is not shown any more"

    context.add("n", told)
    assert context.known_tokens == (120, 5) and context.tokens(length, start=5) == 0


def test_what_came_since_an_answer_includes_its_open_batch() -> None:
    context = context_of(path(user("a"), asking("x", "y"), result("x")))

    assert context.tokens(one, start=2) == 2 and context.tokens(one, start=3) == 1 and context.tokens(one, start=9) == 0


def test_the_messages_of_a_range_of_pieces_are_those_of_the_view() -> None:
    entries = path(user("a"), asking("x", "y"), result("y"), user("b"), saying("B"))
    context = context_of(entries)

    assert context.shown_between(entries[1].id, entries[2].id) == (asking("x", "y"), missing("x"), result("y"))
    assert context.shown_between(entries[3].id, entries[4].id) == (user("b"), saying("B"))
    with pytest.raises(KeyError):
        context.shown_between(entries[0].id, "elsewhere")


# Properties.


WORD = re.compile(r"word\d+\.")


class Words:
    """Texts of which no two are the same."""

    def __init__(self) -> None:
        self._number = 0

    def next(self) -> str:
        self._number += 1
        return f"word{self._number}."


@st.composite
def paths(draw: st.DrawFn, max_size: int = 10, *, compactions: bool = False) -> list[Placed]:
    """Entries of any kind in any order, no text twice; compactions keep from anywhere in what counts, or nothing."""
    words, entries, reserved = Words(), list[Placed](), list[str]()
    kinds = ["user", "answer", "answer", "result", "result", "note", "other", "branch", "empty"]
    for number in range(1, draw(st.integers(0, max_size)) + 1):
        id = entry_id(number)
        kind = draw(st.sampled_from([*kinds, "compaction", "compaction"] if compactions else kinds))
        body = _body(draw, kind, words, entries)
        if isinstance(body, AssistantMessage):
            reserved += [call_id(id, index) for index in range(len(body.calls))]
        if isinstance(body, ToolResultMessage) and reserved and draw(st.booleans()):
            id = reserved.pop(draw(st.integers(0, len(reserved) - 1)))
        entries.append(Placed(id, body))
    return entries


def _body(draw: st.DrawFn, kind: str, words: Words, entries: Sequence[Placed]) -> EntryBody:
    text = (TextPart(text=words.next()),)
    match kind:
        case "user":
            return UserMessage(content=text)
        case "answer":
            calls = draw(st.lists(CALLS, max_size=3))
            return AssistantMessage(content=(*text, *calls), stop_reason=draw(STOPS))
        case "result":
            return ToolResultMessage(call_id=draw(IDS), name="t", content=text)
        case "note" | "other":
            return Custom(type=kind, data=words.next())
        case "branch":
            return BranchSummary(summary=words.next(), left="left")
        case "compaction":
            _, rest = counted(entries)
            return compaction(draw(st.sampled_from([None, *(each.id for each in rest)])), words.next())
        case _:
            empty: list[EntryBody] = [UserMessage(content=()), AssistantMessage(content=(), stop_reason="stop")]
            return draw(st.sampled_from(empty))


def read_from(entries: Sequence[Placed]) -> Sequence[Placed]:
    """The part of a path that has to be read: from where the newest compaction keeps it on."""
    at = max((n for n, each in enumerate(entries) if isinstance(each.body, Compaction)), default=None)
    newest = None if at is None else entries[at].body
    if at is None or not isinstance(newest, Compaction):
        return entries
    ids = [each.id for each in entries]
    return entries[at if newest.kept_from is None else ids.index(newest.kept_from) :]


def check_shown(entries: Sequence[Placed]) -> None:
    """Read entry by entry, read from where it has to be, and said plainly: all the same, sound, and nothing twice."""
    whole, bounded, plain = context_of(entries), context_of(read_from(entries)), messages_of(entries)
    seen = list(whole.view())

    assert seen == plain, entries
    assert list(bounded.view()) == plain, entries
    assert whole.open_calls() == bounded.open_calls() and whole.earlier == bounded.earlier
    assert check_pairing(seen) == [] and (not seen or pairing_problem(seen) is None)
    _check_words(entries, seen)
    for context in (whole, bounded):
        _check_pieces(context, entries)


def _check_words(entries: Sequence[Placed], seen: Sequence[Message]) -> None:
    """Each text that is shown is one of what counts, and is there once."""
    newest, rest = counted(entries)
    allowed = {word for each in rest for word in _words(each.body)}
    if newest is not None:
        allowed.update(_words(newest))
    shown = [word for message in seen for word in _words(message)]
    assert len(shown) == len(set(shown)) and allowed.issuperset(shown), entries


def _words(body: EntryBody | Message) -> list[str]:
    return WORD.findall(_text_of(body))


def _text_of(body: EntryBody | Message) -> str:
    if isinstance(body, Custom):
        return str(body.data) if body.type == "note" else ""
    if isinstance(body, Compaction | BranchSummary):
        return body.summary
    return "".join(part.text for part in body.content if isinstance(part, TextPart) and part.text != NOT_AVAILABLE)


def _check_pieces(context: ModelContext, entries: Sequence[Placed]) -> None:
    shown = shown_of(entries)
    summary = 0 if context.earlier is None else 1
    pieces, bodies = context.pieces(length), {each.id: each.body for each in entries}
    assert [each.id for each in pieces] == [id for id, _ in shown if id is not None]
    assert all(each.body is bodies[each.id] for each in pieces)
    view = list(context.view())
    assert context.tokens(length) == sum(map(length, view))
    assert sum(each.tokens for each in pieces) == sum(map(length, view[summary:]))
    if pieces:
        assert context.shown_between(pieces[0].id, pieces[-1].id) == tuple(view[summary:])
    starts = [*(number for number, (id, _) in enumerate(shown) if id is not None), len(shown)]
    for number, piece in enumerate(pieces):
        start, end = starts[number], starts[number + 1]
        assert piece.tokens == sum(map(length, view[start:end]))
        assert context.shown_between(piece.id, piece.id) == tuple(view[start:end])


@given(paths(8), st.data())
def test_a_compaction_at_any_place_that_keeps_from_anywhere_shows_what_the_rules_say(
    entries: list[Placed], data: st.DataObject
) -> None:
    """Every place, and behind it every entry and none; what comes behind it is shown too."""
    for place in range(len(entries) + 1):
        for kept_from in [None, *(each.id for each in entries[:place])]:
            cut = Placed(entry_id(900), compaction(kept_from, "word900."))
            check_shown([*entries[:place], cut, *entries[place:]])


@given(paths(16, compactions=True))
def test_paths_with_many_compactions_show_what_the_newest_says(entries: list[Placed]) -> None:
    for end in range(len(entries) + 1):
        check_shown(entries[:end])


@given(paths(16))
def test_what_was_shown_stays_while_the_path_grows_without_a_compaction(entries: list[Placed]) -> None:
    context = ModelContext(projected)
    closed: list[list[Message]] = [[]]
    for each in entries:
        context.add(*each)
        whole = list(context.view())
        assert all(whole[: len(before)] == before for before in closed)
        if context.open_calls() is None:
            closed.append(whole)
    check_shown(entries)


@given(paths(16, compactions=True))
def test_views_stay_what_they_were_whatever_comes(entries: list[Placed]) -> None:
    context = ModelContext(projected)
    taken: list[tuple[Sequence[Message], list[Message]]] = []
    for each in entries:
        context.add(*each)
        taken.append((context.view(), list(context.view())))
    assert all(list(view) == then for view, then in taken)
