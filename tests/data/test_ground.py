"""Claim: names, ids, errors and requests follow the one rule that each of them has."""

from __future__ import annotations

import enum
import pickle
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane import errors
from agentlane.clock import SystemClock
from agentlane.data.addresses import ListAddress, ValueAddress, app_address
from agentlane.data.messages import ImagePart, TextPart, ToolCallPart, UserMessage, user
from agentlane.data.requests import Prompt, prompt_messages, request_digest
from agentlane.data.writes import Address
from agentlane.errors import AgentLaneError, InvalidMessage, InvalidName
from agentlane.ids import (
    CALLS_MAX,
    DERIVED_MAX,
    FOLLOW_UPS_AT_ONCE,
    Uuid7Source,
    call_id,
    correction_id,
    derive,
    follow_up_id,
    is_follow_up,
    usage_id,
)
from agentlane.machine.facts import IllegalStep
from agentlane.model import ModelError
from agentlane.names import check_name, check_session_id
from agentlane.testing.clock import ManualClock

# Names.


class Lanes(enum.StrEnum):
    MAIN = "main"


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x/y:z@w", ".hidden", "-", "x" * 128, Lanes.MAIN], ids=str)
def test_a_name_of_the_pattern_is_taken(name: str) -> None:
    assert check_name(name, "lane") == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "a b", "a|b", "a\n", "a\x00b", "é", "٣", "a\u2028", "\ud800", "a,b", "a%b", "a\\b", "a*b"],
    ids=ascii,
)
def test_a_name_outside_the_pattern_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="^lane ") as caught:
        check_name(name, "lane")

    str(caught.value).encode(errors="strict")


@pytest.mark.parametrize(
    "name", [None, 5, b"main", ["main"], ("main",), object()], ids=lambda each: type(each).__name__
)
def test_what_is_no_text_is_no_name(name: Any) -> None:
    with pytest.raises(InvalidName):
        check_name(name, "lane")


@pytest.mark.parametrize(
    ("id", "good"), [("a.b-c@d_e", True), ("a/b", False), ("a:b", False), (".a", False), ("", False)]
)
def test_a_session_id_is_also_a_file_name(id: str, good: bool) -> None:
    if good:
        assert check_session_id(id) == id
    else:
        with pytest.raises(InvalidName):
            check_session_id(id)


def test_applications_keep_to_their_own_addresses() -> None:
    assert app_address("app.notes", "k") == Address("app.notes", "k")
    assert ValueAddress("app.notes", "k", int).address == ListAddress("app.notes", "k", int).address
    for namespace, key in [
        ("op.state", "k"),
        ("app", "k"),
        ("App.x", "k"),
        ("app.a|b", "k"),
        ("app.a", ""),
        ("app.a", "a|b"),
    ]:
        with pytest.raises(InvalidName):
            app_address(namespace, key)


# Ids.


class JumpyClock(ManualClock):
    """A clock that says the times it is given."""

    def __init__(self, times: list[int]) -> None:
        super().__init__()
        self._times: Iterator[int] = iter(times)

    def now_ms(self) -> int:
        return next(self._times)


ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{8}0000")


def test_an_id_is_a_uuid_of_version_7_that_begins_with_the_time() -> None:
    now = 1_700_000_123_456

    id = Uuid7Source(ManualClock(start_ms=now)).new()

    assert ID.fullmatch(id)
    assert int(id.replace("-", "")[:12], 16) == now


@given(st.lists(st.integers(1, 2**47), min_size=2, max_size=50))
def test_ids_grow_whatever_the_clock_does(times: list[int]) -> None:
    source = Uuid7Source(JumpyClock(times))

    made = [source.new() for _ in times]

    assert all(before < after for before, after in pairwise(made))
    assert all(ID.fullmatch(id) for id in made)


def test_ids_grow_beyond_the_counter_of_one_millisecond() -> None:
    source = Uuid7Source(ManualClock())

    made = [source.new() for _ in range(10_000)]

    assert all(before < after for before, after in pairwise(made))
    assert len(set(made)) == 10_000


def test_two_sources_of_one_moment_do_not_meet() -> None:
    clock = ManualClock()

    made = {Uuid7Source(clock).new() for _ in range(500)}

    assert len(made) == 500


def test_a_block_of_ids_sorts_behind_its_base_and_before_the_next() -> None:
    source = Uuid7Source(ManualClock())
    base, following = source.new(), source.new()

    block = [derive(base, n) for n in (0, 1, 2, 9, 10, 255, 256, DERIVED_MAX)]

    assert block[0] == base and usage_id(base) == block[1] and call_id(base, 0) == block[2]
    assert sorted(block) == block and block[-1] < following
    behind = [call_id(base, CALLS_MAX - 1), *(follow_up_id(base, n) for n in range(FOLLOW_UPS_AT_ONCE))]
    behind.append(correction_id(base))
    assert sorted({*behind}) == behind and behind[-1] == derive(base, DERIVED_MAX)
    assert [is_follow_up(id) for id in behind] == [False, *[True] * FOLLOW_UPS_AT_ONCE, False]
    for beyond in (-1, DERIVED_MAX + 1):
        with pytest.raises(ValueError, match="a block holds ids"):
            derive(base, beyond)


async def test_the_system_clock_tells_milliseconds_and_does_not_sleep_for_what_is_past() -> None:
    clock = SystemClock()

    before, now, after = time.time_ns() // 1_000_000, clock.now_ms(), time.time_ns() // 1_000_000
    await clock.sleep_until(now - 1)

    assert before <= now <= after


class Machine:
    """What a clock sees of a machine: the time of day, the time since the start, and sleeping, which takes no time.

    ``set_by_s``: by how much somebody sets the time of day during the first nap.
    """

    def __init__(self, *, set_by_s: int) -> None:
        self.wall_s = 1_700_000_000
        self.since_s = 0.0
        self.naps: list[float] = []
        self._set_by_s = set_by_s

    def time_ns(self) -> int:
        return round((self.wall_s + self.since_s) * 1_000_000_000)

    def time(self) -> float:
        return self.since_s

    def get_running_loop(self) -> Machine:
        return self

    async def sleep(self, delay_s: float) -> None:
        assert len(self.naps) < 100, f"it sleeps on: {self.naps}"
        self.naps.append(delay_s)
        self.since_s += delay_s
        self.wall_s, self._set_by_s = self.wall_s + self._set_by_s, 0


@pytest.mark.parametrize(
    ("set_by_s", "delay_ms", "naps"),
    [
        (0, 200, [0.2]),
        (0, 150_000, [60, 60, 30]),
        (-600, 200, [0.2]),  # set back: a length of time stays what it is
        (-600, 90_000, [60, 30]),
        (600, 90_000, [60]),  # set forward: what is due now is not waited for
        (10, 90_000, [60, 20]),
    ],
)
async def test_a_sleep_is_no_longer_than_it_was_asked_for_when_somebody_sets_the_clock(
    set_by_s: int, delay_ms: int, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(set_by_s=set_by_s)
    monkeypatch.setattr("agentlane.clock.time", machine)
    monkeypatch.setattr("agentlane.clock.asyncio", machine)
    clock = SystemClock()

    await clock.sleep_until(clock.now_ms() + delay_ms)

    assert machine.naps == pytest.approx(naps)


# Errors.


def all_errors() -> list[type[AgentLaneError]]:
    found: list[type[AgentLaneError]] = []
    todo: list[type[AgentLaneError]] = [AgentLaneError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += [each for each in kind.__subclasses__() if each.__module__.startswith("agentlane")]
    return found


def test_every_error_has_a_code_of_its_own_that_reads_like_its_name() -> None:
    codes = {kind.code: kind for kind in all_errors()}

    assert len(codes) == len(all_errors())
    for code, kind in codes.items():
        if kind is not AgentLaneError:
            assert code == re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def test_every_error_of_the_module_has_the_one_root() -> None:
    mine = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)]

    assert all(issubclass(each, AgentLaneError) for each in mine)
    assert len(mine) > 25
    assert not issubclass(IllegalStep, AgentLaneError), "a bug of ours is not an error to be handled"


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_pickles_with_its_message_and_details(kind: type[AgentLaneError]) -> None:
    error = (
        ModelError("it broke", retryable=True, kind="overloaded") if kind is ModelError else kind("it broke", id="x")
    )
    error.__cause__ = ValueError("why")

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind and str(copy) == "it broke" and copy.details == error.details and copy.code == kind.code
    if isinstance(copy, ModelError):
        assert copy.retryable and copy.kind == "overloaded" and copy.sent


def test_an_error_of_an_application_pickles_too() -> None:
    copy = pickle.loads(pickle.dumps(_Own("mine", place=3)))

    assert type(copy) is _Own and copy.details == {"place": 3}


class _Own(AgentLaneError):
    code = "own"


# Requests.

IMAGE = ImagePart(data="aGk=", mime_type="image/png")


def test_a_prompt_is_text_and_images_or_messages() -> None:
    assert prompt_messages(Prompt("hi")) == (user("hi"),)
    assert prompt_messages(Prompt("hi", images=(IMAGE,))) == (user("hi", [IMAGE]),)
    assert prompt_messages(Prompt(images=(IMAGE,))) == (user("", [IMAGE]),)
    assert prompt_messages(Prompt(messages=(user("a"), user("b")))) == (user("a"), user("b"))
    assert prompt_messages(Prompt(messages=[user("a")])) == (user("a"),)  # type: ignore[arg-type]


def test_text_of_a_prompt_is_cleaned() -> None:
    (message,) = prompt_messages(Prompt("현\ud99c 보유"))

    assert message == user("현\ufffd 보유")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ("hi", "request: a Prompt is needed here, not str; write Prompt('...')"),
        ({"text": "hi"}, "request: a Prompt is needed here, not dict"),
        (("hi",), "request: a Prompt is needed here, not tuple"),
        (None, "request: a Prompt is needed here, not NoneType"),
        (user("hi"), "request: a Prompt is needed here, not UserMessage"),
        (Prompt(), "prompt: it is empty"),
        (Prompt(""), "prompt: it is empty"),
        (Prompt(5), "prompt.text: text is needed here, not int"),
        (Prompt(["hi"]), "prompt.text: text is needed here, not list"),
        (Prompt("hi", messages=(user("a"),)), "prompt: give text and images, or messages, not both"),
        (Prompt("hi", messages="a"), "prompt.messages: a tuple is needed here, not str"),
        (Prompt(messages={"role": "user"}), "prompt.messages: a tuple is needed here, not dict"),
        (Prompt(messages=user("a")), "prompt.messages: a tuple is needed here, not UserMessage"),
        (
            Prompt(messages=({"role": "user", "content": "a"},)),
            "prompt.messages[0]: a UserMessage is needed here, not dict",
        ),
        (Prompt(messages=(user("a"), "b")), "prompt.messages[1]: a UserMessage is needed here, not str"),
        (Prompt(messages=(("user", "a"),)), "prompt.messages[0]: a UserMessage is needed here, not tuple"),
        (Prompt(messages=(UserMessage(content=()),)), "prompt.messages[0].content: it is empty"),
        (Prompt(messages=(UserMessage(content="a"),)), "prompt.messages[0].content: a tuple is needed here, not str"),
        (
            Prompt(messages=(UserMessage(content=({"type": "text"},)),)),
            "prompt.messages[0].content[0]: a TextPart or ImagePart is needed here, not dict",
        ),
        (
            Prompt(messages=(UserMessage(content=(TextPart(text="a"), ToolCallPart(id="c", name="t"))),)),
            "prompt.messages[0].content[1]: a TextPart or ImagePart is needed here, not ToolCallPart",
        ),
        (
            Prompt(messages=(UserMessage(content=(TextPart(text=5),)),)),
            "prompt.messages[0].content[0].text: text is needed here, not int",
        ),
        (Prompt("hi", images=IMAGE), "prompt.images: a tuple is needed here, not ImagePart"),
        (Prompt("hi", images=("a.png",)), "prompt.images[0]: an ImagePart is needed here, not str"),
        (Prompt("hi", images=(IMAGE, {"data": ""})), "prompt.images[1]: an ImagePart is needed here, not dict"),
        (
            Prompt("hi", images=(ImagePart(data=b"raw", mime_type="image/png"),)),
            "prompt.images[0].data: text is needed here, not bytes",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_prompt_is_refused_with_its_path(request_: Any, why: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        prompt_messages(request_)

    assert str(caught.value).startswith(why)


NAME_127 = "x" * 127


@pytest.mark.parametrize(
    "mime_type", ["image/png", "image/svg+xml", "a/b", "9/9", f"{NAME_127}/{NAME_127}", "a/a!#$&-^_.+"]
)
def test_a_media_type_is_two_names(mime_type: str) -> None:
    (message,) = prompt_messages(Prompt(images=(ImagePart(data="", mime_type=mime_type),)))

    assert message.content == (ImagePart(data="", mime_type=mime_type),)


@pytest.mark.parametrize(
    "mime_type",
    [
        *(
            "",
            "png",
            "image/",
            "/png",
            "image/png/x",
            "image/png;q=1",
            " image/png",
            "image/png\n",
            "image/é",
            "image/-x",
        ),
        *(f"{NAME_127}x/png", f"image/{NAME_127}x", "x" * 1_000_000),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_media_type_is_refused_in_few_words(mime_type: str) -> None:
    for request in (
        Prompt("see", images=(ImagePart(data="", mime_type=mime_type),)),
        Prompt(messages=(UserMessage(content=(ImagePart(data="", mime_type=mime_type),)),)),
    ):
        with pytest.raises(InvalidMessage) as caught:
            prompt_messages(request)

        assert ".mime_type: " in str(caught.value) and "is not a media type" in str(caught.value)
        assert len(str(caught.value)) < 250


def test_a_digest_is_that_of_the_messages_on_that_lane() -> None:
    same = request_digest("main", prompt_messages(Prompt("hi")))

    assert (
        same
        == request_digest("main", prompt_messages(Prompt(messages=(user("hi"),))))
        == request_digest("main", (user("hi"),))
    )
    others = [
        request_digest("other", (user("hi"),)),
        request_digest("main", (user("hi "),)),
        request_digest("main", (user("hi"), user("hi"))),
        request_digest("main", (user("hi", [IMAGE]),)),
    ]
    assert len({same, *others}) == 5 and len(same) == 32
