"""Claim: whatever a path holds, what the model is shown of it is paired, harmless, and only ever grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.data.entries import Custom, EntryBody
from agentlane.data.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ProviderPart,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    user,
)
from agentlane.ids import call_id
from agentlane.machine.context import NO_OUTPUT, NOT_AVAILABLE, ModelContext, not_available
from agentlane.testing.pair import check_pairing


class Placed(NamedTuple):
    """One entry of a path."""

    id: str
    body: EntryBody


def entry_id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:08x}0000"


def path(*bodies: EntryBody) -> list[Placed]:
    """Entries with fresh ids; results are named as an import would name them, by the provider's id of the call."""
    return [Placed(entry_id(number), body) for number, body in enumerate(bodies, start=1)]


def shown(entries: Sequence[Placed]) -> list[Message]:
    context = ModelContext()
    for id, body in entries:
        context.add(id, body)
    return list(context.view())


def asking(*ids: str, text: str = "", stop_reason: StopReason = "tool_calls") -> AssistantMessage:
    said = (TextPart(text=text),) if text else ()
    calls = (ToolCallPart(id=id, name=f"tool-{id}", arguments={}) for id in ids)
    return AssistantMessage(content=(*said, *calls), stop_reason=stop_reason)


def saying(text: str, stop_reason: StopReason = "stop") -> AssistantMessage:
    return AssistantMessage(content=(TextPart(text=text),), stop_reason=stop_reason)


def result(id: str, text: str = "fine", name: str | None = None) -> ToolResultMessage:
    content = (TextPart(text=text),) if text else ()
    return ToolResultMessage(call_id=id, name=f"tool-{id}" if name is None else name, content=content)


def missing(id: str, name: str | None = None) -> ToolResultMessage:
    return not_available(ToolCallPart(id=id, name=f"tool-{id}" if name is None else name))


# A sound path is shown as it is.


def test_a_sound_conversation_is_shown_word_for_word_and_as_the_very_same_objects() -> None:
    entries = path(
        user("hi"), asking("a", "b", text="let me see"), result("a"), result("b"), saying("done"), user("thanks")
    )

    seen, said = shown(entries), [body for _, body in entries]

    assert seen == said
    assert all(left is right for left, right in zip(seen, said, strict=True)), "nothing is copied that need not be"
    assert check_pairing(seen) == []


def test_whole_opaque_parts_go_verbatim() -> None:
    answer = AssistantMessage(
        content=(
            ThinkingPart(text="", signature="sealed", redacted=True),
            ThinkingPart(text="hm", signature="s"),
            ProviderPart(provider="p", data={"b": [1, None], "a": "\x00"}),
            TextPart(text="so", signature="t"),
            ToolCallPart(id="a", name="tool-a", arguments=None, arguments_text="{not json", signature="u"),
        ),
        stop_reason="tool_calls",
    )

    assert shown(path(user("go"), answer, result("a")))[1] == answer


# Left out.


@pytest.mark.parametrize("stop_reason", ["error", "aborted"])
def test_error_and_aborted_answers_are_left_out_with_their_calls(stop_reason: StopReason) -> None:
    failed = asking("a", text="half", stop_reason=stop_reason)

    assert shown(path(user("go"), failed, user("again"))) == [user("go"), user("again")]
    context = ModelContext()
    context.add(entry_id(1), failed)
    assert context.open_calls() is None, "they never get results"


def test_a_failed_answer_inside_a_batch_does_not_end_it() -> None:
    seen = shown(path(user("go"), asking("a", "b"), result("a"), saying("oh", "error"), result("b"), saying("done")))

    assert seen == [user("go"), asking("a", "b"), result("a"), result("b"), saying("done")]


def test_answers_without_content_and_entries_of_applications_are_left_out() -> None:
    empty = AssistantMessage(content=(), stop_reason="stop")
    hollow = AssistantMessage(content=(TextPart(text=""),), stop_reason="stop")
    noise = Custom(type="note", data={"text": "not for the model"})

    assert shown(path(user("a"), empty, user("b"), hollow, noise, user("c"))) == [user("a"), user("b"), user("c")]


def test_an_entry_of_an_application_inside_a_batch_does_not_end_it() -> None:
    seen = shown(path(user("go"), asking("a", "b"), result("a"), Custom(type="note"), result("b")))

    assert seen == [user("go"), asking("a", "b"), result("a"), result("b")]


def test_an_empty_text_is_left_out_and_the_rest_of_the_message_stays() -> None:
    image = ImagePart(data="aGk=", mime_type="image/png")
    mixed = UserMessage(content=(TextPart(text=""), image, TextPart(text="look")))
    answer = AssistantMessage(
        content=(TextPart(text=""), ToolCallPart(id="a", name="tool-a", arguments={})), stop_reason="tool_calls"
    )

    seen = shown(path(mixed, answer, result("a")))

    assert seen[0] == UserMessage(content=(image, TextPart(text="look")))
    assert seen[1] == asking("a")


def test_a_user_message_of_nothing_but_empty_text_is_left_out() -> None:
    assert shown(path(UserMessage(content=(TextPart(text=""),)), user("hi"))) == [user("hi")]


# Results.


@pytest.mark.parametrize("content", [(), (TextPart(text=""),), (TextPart(text=""), TextPart(text=""))])
def test_a_result_without_content_says_so(content: tuple[TextPart, ...]) -> None:
    empty = ToolResultMessage(call_id="a", name="tool-a", content=content, details={"kept": 1})

    seen = shown(path(user("go"), asking("a"), empty))

    assert seen[2] == ToolResultMessage(
        call_id="a", name="tool-a", content=(TextPart(text=NO_OUTPUT),), details={"kept": 1}
    )


def test_results_in_the_wrong_order_are_put_into_call_order() -> None:
    seen = shown(path(user("go"), asking("a", "b", "c"), result("c"), result("a"), result("b"), saying("done")))

    assert seen[2:5] == [result("a"), result("b"), result("c")]


@pytest.mark.parametrize("after", [user("next"), saying("so"), asking("z")], ids=["user", "answer", "calls"])
def test_a_missing_result_further_up_is_put_into_the_request(after: EntryBody) -> None:
    seen = shown(path(user("go"), asking("a", "b", "c"), result("b"), after))

    assert seen[:5] == [user("go"), asking("a", "b", "c"), missing("a"), result("b"), missing("c")]
    assert missing("a").text == NOT_AVAILABLE and missing("a").is_error
    assert check_pairing(seen) == []


def test_a_batch_that_is_open_at_the_end_is_closed_in_the_view_only() -> None:
    context = ModelContext()
    entries = path(user("go"), asking("a", "b"), result("b"))
    for each in entries:
        context.add(*each)

    assert list(context.view()) == [user("go"), asking("a", "b"), missing("a"), result("b")]
    found = context.open_calls()
    assert found is not None and found[0] == entries[1].id and [call.id for call in found[1]] == ["a"]

    context.add(entry_id(9), result("a", "late"))

    assert list(context.view()) == [user("go"), asking("a", "b"), result("a", "late"), result("b")]
    assert context.open_calls() is None


@pytest.mark.parametrize(
    "entries",
    [
        path(result("a"), user("go"), saying("done")),
        path(user("go"), result("a"), saying("done")),
        path(user("go"), saying("done"), result("a")),
        path(user("go"), saying("done", "error"), result("a"), saying("done")),
    ],
    ids=["at the root", "behind a prompt", "behind an answer", "behind a failed answer"],
)
def test_a_result_without_its_call_is_left_out(entries: list[Placed]) -> None:
    seen = shown(entries)

    assert not any(isinstance(message, ToolResultMessage) for message in seen)


def test_a_second_result_of_a_call_is_left_out() -> None:
    seen = shown(path(user("go"), asking("a", "b"), result("a", "first"), result("a", "second"), result("b")))

    assert seen[2:] == [result("a", "first"), result("b")]


def test_a_result_that_comes_after_its_batch_was_closed_is_left_out() -> None:
    seen = shown(path(user("go"), asking("a"), user("never mind"), result("a"), saying("fine")))

    assert seen == [user("go"), asking("a"), missing("a"), user("never mind"), saying("fine")]


def test_a_result_is_known_by_its_reserved_id_before_the_providers() -> None:
    """Two calls of one provider id: our own results say by their id which one they answer."""
    answer = asking("same", "same")
    first, second = result("same", "first"), result("same", "second")

    ours = shown([Placed(entry_id(1), answer), Placed(call_id(entry_id(1), 1), second)])
    imported = shown(path(answer, first, second))

    assert [message.text for message in ours[1:] if isinstance(message, ToolResultMessage)] == [NOT_AVAILABLE, "second"]
    assert [message.text for message in imported[1:] if isinstance(message, ToolResultMessage)] == ["first", "second"]


def test_an_id_of_a_call_that_the_answer_does_not_have_answers_none() -> None:
    answer = asking("a", "b")

    seen = shown([Placed(entry_id(1), answer), Placed(call_id(entry_id(1), 2), result("c"))])

    assert seen == [answer, missing("a"), missing("b")]


def test_a_result_goes_under_the_name_of_its_call() -> None:
    seen = shown(path(user("go"), asking("a"), result("a", name="renamed meanwhile")))

    assert seen[2] == result("a")


# Ids.


def test_repeated_and_empty_ids_are_made_unique_and_results_follow() -> None:
    entries = path(asking("a", "", "a", ""), *(result(id, f"{n}") for n, id in enumerate(["a", "", "a", ""])))
    entries += path(*[user("x")] * 9, asking("a", "a-2", "call"))[9:]

    seen = shown(entries)

    first, *results, second = (m for m in seen if not isinstance(m, ToolResultMessage) or m.text != NOT_AVAILABLE)
    assert isinstance(first, AssistantMessage) and isinstance(second, AssistantMessage)
    assert [call.id for call in first.calls] == ["a", "call", "a-2", "call-2"]
    assert [(m.call_id, m.text) for m in results if isinstance(m, ToolResultMessage)] == [
        ("a", "0"),
        ("call", "1"),
        ("a-2", "2"),
        ("call-2", "3"),
    ]
    assert [call.id for call in second.calls] == ["a-3", "a-2-2", "call-3"]


def test_a_made_id_never_takes_one_that_came_before() -> None:
    seen = shown(path(asking("a-2", "a", "a", "a-3")))

    assert isinstance(seen[0], AssistantMessage)
    assert [call.id for call in seen[0].calls] == ["a-2", "a", "a-3", "a-3-2"]


# The view.


def test_a_view_is_a_snapshot_that_reads_like_a_sequence() -> None:
    context = ModelContext()
    for each in path(user("a"), saying("b")):
        context.add(*each)
    view = context.view()

    context.add(entry_id(7), user("c"))

    assert len(view) == 2 and list(view) == [user("a"), saying("b")]
    assert view == [user("a"), saying("b")] and view != [user("a")]
    assert view[0] == user("a") == view[-2]
    assert view[-1] == saying("b") == view[1] and view[-2:] == [user("a"), saying("b")] and view[5:] == []
    assert user("c") not in view and list(reversed(view)) == [saying("b"), user("a")]
    for index in (2, -3):
        with pytest.raises(IndexError) as caught:
            view[index]
        assert caught.value.args == (index,)
    assert repr(view) == repr((user("a"), saying("b")))


# Properties.

IDS = st.sampled_from(["", "a", "a", "b", "a-2", "call", "call-2"])
TEXTS = st.sampled_from(["", "x"])
STOPS: st.SearchStrategy[StopReason] = st.sampled_from(["stop", "tool_calls", "length", "error", "aborted"])
CONTENT = st.lists(st.builds(TextPart, text=TEXTS), max_size=2).map(tuple)
CALLS = st.builds(
    ToolCallPart, id=IDS, name=st.sampled_from(["t", "u"]), arguments=st.just({}), arguments_text=st.none()
)
BODIES = st.one_of(
    st.builds(UserMessage, content=CONTENT),
    st.builds(
        AssistantMessage,
        content=st.lists(st.builds(TextPart, text=TEXTS) | CALLS, max_size=4).map(tuple),
        stop_reason=STOPS,
    ),
    st.builds(ToolResultMessage, call_id=IDS, name=st.sampled_from(["t", "u"]), content=CONTENT),
    st.builds(Custom, type=st.just("note")),
)


@st.composite
def paths(draw: st.DrawFn) -> list[Placed]:
    """Entries of any kind in any order; some results have the id that an earlier call reserved."""
    entries: list[Placed] = []
    reserved: list[str] = []
    for number, body in enumerate(draw(st.lists(BODIES, max_size=14)), start=1):
        id = entry_id(number)
        if isinstance(body, AssistantMessage):
            reserved += [call_id(id, index) for index in range(len(body.calls))]
        if isinstance(body, ToolResultMessage) and reserved and draw(st.booleans()):
            id = reserved.pop(draw(st.integers(0, len(reserved) - 1)))
        entries.append(Placed(id, body))
    return entries


@given(paths())
def test_every_path_is_shown_so_that_no_provider_can_refuse_it(entries: list[Placed]) -> None:
    assert check_pairing(shown(entries)) == []


@given(paths())
def test_what_was_shown_stays_as_it_was_when_the_path_grows(entries: list[Placed]) -> None:
    context = ModelContext()
    closed: list[list[Message]] = []
    for each in entries:
        context.add(*each)
        if context.open_calls() is None:
            closed.append(list(context.view()))
        # An open batch hides nothing of what was shown before it either.
        whole = list(context.view())
        assert all(whole[: len(before)] == before for before in closed)


@given(paths())
def test_only_what_the_rules_name_is_left_out(entries: list[Placed]) -> None:
    """Every text of users and good answers, and every call of good answers, is there, in order."""
    good = [
        body
        for _, body in entries
        if isinstance(body, UserMessage)
        or (isinstance(body, AssistantMessage) and body.stop_reason not in ("error", "aborted"))
    ]

    seen = [message for message in shown(entries) if not isinstance(message, ToolResultMessage)]

    assert [text for body in good for text in _texts(body)] == [text for message in seen for text in _texts(message)]


def _texts(message: Message) -> list[str]:
    return [
        part.name if isinstance(part, ToolCallPart) else part.text
        for part in message.content
        if isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and part.text)
    ]
