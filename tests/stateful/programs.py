"""The language of the programs: what a model does on each request, and the steps that a host takes, with their makers.

Numbers stand for things (a lane, an entry, an operation) and are taken modulo what there is, so that every program can
be played and stays one when it shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hypothesis import strategies as st

from tests.stateful.again import Retry
from tests.stateful.delivery import DEFERRING_POLICIES, DeferringTool, Deliver
from tests.stateful.hooks import Hooks
from tests.stateful.kin import KIN, TOOLS_OF_KIN
from tests.stateful.moves import Move
from tests.stateful.people import ASKED_POLICIES, AskedTool, Decide
from tests.stateful.questions import ASKING_POLICIES, Answer, AskingTool
from tests.stateful.summing import Compact, Leave, Summing
from tests.stateful.talk import Talk

ToolName: TypeAlias = (
    Literal["safe", "key", "never", "alone", "ghost", "agent", "kin", "deep"] | AskedTool | DeferringTool | AskingTool
)
POLICIES = {
    "safe": "safe",
    "key": "idempotent",
    "never": "never",
    "alone": "safe",
    **ASKED_POLICIES,
    **DEFERRING_POLICIES,
    **ASKING_POLICIES,
}
"""The tools of an agent and their replay policies; no agent has a ``ghost``."""
BARRIERS = ("alone", "locked", *KIN)
ABSENT = ("key", "maybe", "check", "query")
TOOLS_OF_HANDLE: tuple[tuple[str, ...], ...] = (
    (*POLICIES, "agent", "kin"),
    (*(each for each in POLICIES if each not in ABSENT), "agent", "kin"),
    *TOOLS_OF_KIN,
)
"""What the agent of each handle can do: the second knows fewer tools."""
LANES = BRANCHES = ("main", "side", "third")
SETTINGS: tuple[dict[str, int], ...] = ({}, {"heat": 1})
TOOL_CHOICES: tuple[tuple[str, ...], ...] = (
    (),
    ("safe", "alone", "agent", "kin"),
    ("safe", "never", "alone", "agent", "kin"),
    ("asked", "locked", "safe", "agent", "kin"),
)
RETRY_AFTER_MS = 37
FRAMES_EVERY_MS = 100
ADVANCE_MS = 150
ATTEMPTS, MAX_RESTARTS, MAX_REPLAYS = 3, 2, 1


# What a model and its tools do.


@dataclass(frozen=True)
class Call:
    """One call of an answer. It hangs on its first ``hang`` starts; otherwise calls of a group end in order of rank."""

    tool: ToolName
    end: Literal["ok", "raise", "stop"] = "ok"
    hang: int = 0
    rank: int = 0
    prompt: int = 0
    """What an agent is asked."""


@dataclass(frozen=True)
class Reply:
    """What one request gets: ``after_ms`` of a failure is None where trying again is of no use."""

    kind: Literal["text", "calls", "length", "fail", "cut", "hang", "long", "empty"] = "text"
    calls: tuple[Call, ...] = ()
    after_ms: int | None = None
    usage: bool = True


Prompts: TypeAlias = tuple[tuple[Reply, ...], ...]
"""For each prompt the replies to the requests of its operation, in order; then plain texts."""


# What a host does.


@dataclass(frozen=True)
class Accept:
    """``op`` None: without an id."""

    lane: int = 0
    prompt: int = 0
    op: int | None = None
    handle: int = 0


@dataclass(frozen=True)
class Drive:
    lane: int = 0
    op: int | None = None
    wait: bool = True
    handle: int = 0
    answers: bool = False


@dataclass(frozen=True)
class Run:
    lane: int = 0
    prompt: int = 0
    op: int | None = None
    handle: int = 0


@dataclass(frozen=True)
class Resume:
    lane: int = 0


@dataclass(frozen=True)
class LeaveDrive:
    """Cancel the oldest caller that still waits for a drive of the lane."""

    lane: int = 0


@dataclass(frozen=True)
class Abort:
    """``op`` None: the lane's open operation, if there is one."""

    lane: int = 0
    op: int | None = None


@dataclass(frozen=True)
class Result:
    lane: int = 0
    op: int = 0


@dataclass(frozen=True)
class Configure:
    lane: int = 0
    model: int | None = None
    tools: int | None = None
    settings: int | None = None
    handle: int = 0


@dataclass(frozen=True)
class SetValue:
    key: int = 0
    value: int | None = 0


@dataclass(frozen=True)
class Append:
    """``value`` None: delete the list."""

    key: int = 0
    value: int | None = 0


@dataclass(frozen=True)
class SetName:
    text: str | None = "name"


@dataclass(frozen=True)
class SetLabel:
    entry: int = 0
    text: str | None = "label"


@dataclass(frozen=True)
class Adjust:
    """``op`` and ``entry`` None: an adjustment of neither."""

    cost: int = 1
    op: int | None = None
    entry: int | None = None


@dataclass(frozen=True)
class CreateBranch:
    name: int = 2
    at: int | None = None


@dataclass(frozen=True)
class MakeLane:
    name: int = 1
    at: int | None = None


@dataclass(frozen=True)
class AppendEntry:
    """``text`` None: an entry of the application's own."""

    branch: int = 0
    text: str | None = "appended"
    assistant: bool = False


@dataclass(frozen=True)
class Advance:
    """Let time pass, up to the next one who waits for it."""


@dataclass(frozen=True)
class Close:
    pass


@dataclass(frozen=True)
class Kill:
    """The process dies between two steps."""


@dataclass(frozen=True)
class KillAt:
    """The process dies at the ``nth`` boundary from now (from 0)."""

    nth: int = 0


@dataclass(frozen=True)
class FailWrite:
    """The ``nth`` commit from now fails (from 1)."""

    nth: int = 1
    where: Literal["before", "half", "after"] = "before"


@dataclass(frozen=True)
class OpenAgain:
    """A second opener: for writing it is refused, for reading it sees what there is."""

    read_only: bool = False


Direct: TypeAlias = SetValue | Append | SetName | SetLabel | Adjust


@dataclass(frozen=True)
class Held:
    """Calls whose commits are held back all at once; then they go on, or the process dies."""

    calls: tuple[Direct, ...]
    hold: Literal["before_write", "before_report"] = "before_write"
    kill: bool = False


Step: TypeAlias = (
    Accept
    | Drive
    | Run
    | Resume
    | LeaveDrive
    | Abort
    | Result
    | Configure
    | Direct
    | CreateBranch
    | MakeLane
    | AppendEntry
    | Advance
    | Close
    | Kill
    | KillAt
    | FailWrite
    | OpenAgain
    | Held
    | Talk
    | Retry
    | Move
    | Decide
    | Deliver
    | Answer
    | Compact
    | Leave
)


@dataclass(frozen=True)
class Program:
    """What is played: the steps, and what models and tools do meanwhile."""

    steps: tuple[Step, ...]
    prompts: Prompts = ((Reply(),),)
    hooks: Hooks = ()
    summing: Summing | None = None
    """None: nothing is summarized."""
    summaries: tuple[Reply, ...] = ()
    """What the requests for summaries of each operation get, in order; then plain texts."""


# How they are made.

_lane = st.sampled_from([0, 0, 0, 1])
_handle = st.sampled_from([0, 0, 1])
_op = st.one_of(st.none(), st.integers(0, 5))
_prompt = st.integers(0, 3)
_at = st.one_of(st.none(), st.integers(0, 30))
_model = st.sampled_from([None, 0, 1])
_tools = st.sampled_from([None, 0, 1, 2])
_settings = st.sampled_from([None, 0, 1])
_text = st.sampled_from(["appended", None])
_call = st.builds(
    Call,
    st.sampled_from(["safe", "safe", "safe", "key", "key", "never", "never", "never", "alone", "ghost", "agent"]),
    st.sampled_from(["ok", "ok", "ok", "raise", "stop"]),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(0, 3),
    st.integers(0, 3),
)
_hanging = st.builds(
    Call, st.sampled_from(["never", "safe", "key", "alone"]), st.just("ok"), st.integers(0, 2), st.integers(0, 1)
)
_reply = st.one_of(
    st.builds(Reply, st.just("calls"), st.lists(_call, min_size=1, max_size=4).map(tuple)),
    st.builds(Reply, st.sampled_from(["text", "length"]), usage=st.booleans()),
    st.builds(Reply, st.just("length"), st.lists(_call, min_size=1, max_size=2).map(tuple)),
    st.builds(Reply, st.just("fail"), after_ms=st.sampled_from([None, 0, RETRY_AFTER_MS])),
    st.builds(Reply, st.sampled_from(["hang", "hang", "hang", "cut"])),
    st.builds(Reply, st.just("calls"), st.lists(_hanging, min_size=1, max_size=2).map(tuple)),
)
_lasting = st.one_of(
    st.just(Reply("hang")),
    st.builds(Reply, st.just("calls"), st.lists(_hanging, min_size=1, max_size=2).map(tuple)),
    st.just(Reply("fail", after_ms=RETRY_AFTER_MS)),
)
_direct = st.one_of(
    st.builds(SetValue, st.integers(0, 2), st.one_of(st.none(), st.integers(0, 9))),
    st.builds(Append, st.integers(0, 1), st.sampled_from([0, 1, 2, 3, None])),
    st.builds(SetName, st.sampled_from(["a", "b", None])),
    st.builds(SetLabel, st.integers(0, 30), st.sampled_from(["x", "y", None])),
    st.builds(Adjust, st.integers(-5, 5), _op, _at),
)
_work = st.one_of(
    st.builds(Accept, _lane, _prompt, _op, _handle),
    st.builds(Run, _lane, _prompt, _op, _handle),
    st.builds(Drive, _lane, _op, st.booleans(), _handle),
    st.builds(Resume, _lane),
)
_on_lanes = st.one_of(
    st.builds(Abort, _lane, _op),
    st.builds(Result, _lane, st.integers(0, 3)),
    st.builds(Retry, _lane, _op, _op, st.booleans(), _handle),
    st.builds(LeaveDrive, _lane),
    st.builds(Configure, _lane, _model, _tools, _settings, _handle),
    st.builds(CreateBranch, st.integers(0, 2), _at),
    st.builds(MakeLane, st.integers(0, 2), _at),
    st.builds(AppendEntry, st.integers(0, 2), _text, st.booleans()),
    st.builds(Advance),
)
_trouble = st.one_of(
    st.builds(Close),
    st.builds(Kill),
    st.builds(KillAt, st.integers(0, 24)),
    st.builds(FailWrite, st.integers(1, 5), st.sampled_from(["before", "half", "after"])),
    st.builds(OpenAgain, st.booleans()),
    st.builds(
        Held,
        st.lists(_direct, min_size=1, max_size=4).map(tuple),
        st.sampled_from(["before_write", "before_report"]),
        st.booleans(),
    ),
)


_ending: st.SearchStrategy[Step] = st.sampled_from([Kill(), Close(), KillAt(1), KillAt(3)])
_interruption: st.SearchStrategy[Step] = st.one_of(
    _ending,
    st.builds(Advance),
    st.builds(KillAt, st.integers(0, 6)),
    st.builds(FailWrite, st.integers(1, 3), st.sampled_from(["before", "half", "after"])),
    _direct,
)


@st.composite
def _phrases(draw: st.DrawFn) -> tuple[Step, ...]:
    """A few steps on one lane that belong together."""
    lane, prompt, handle = draw(_lane), draw(_prompt), draw(_handle)
    op = draw(_op)
    run = Run(lane, prompt, op, handle)
    match draw(st.integers(0, 6)):
        case 0:  # killed on the way, and perhaps on the way back
            kills = [KillAt(draw(st.integers(0, 20)))] * draw(st.integers(1, 2))
            return (kills[0], run, *kills[1:], Resume(lane), Resume(lane))
        case 1:  # a write fails on the way
            return (
                draw(st.builds(FailWrite, st.integers(1, 8), st.sampled_from(["before", "half", "after"]))),
                run,
                Resume(lane),
            )
        case 2:  # interrupted where it hangs, waits or has ended
            again = [step for _ in range(draw(st.integers(1, 4))) for step in (draw(_ending), Resume(lane))]
            return (run, draw(_interruption), *again)
        case 3:  # aborted there
            return (run, draw(_interruption), Abort(lane), Drive(lane, wait=draw(st.booleans()), handle=draw(_handle)))
        case 4:  # a wait that is sat out, or not
            return (Accept(lane, prompt, None, handle), Drive(lane, wait=draw(st.booleans())), Advance(), Drive(lane))
        case 5:  # configured on the way
            configure = draw(st.builds(Configure, st.just(lane), _model, _tools, _settings, _handle))
            adjust = Adjust(draw(st.integers(-5, 5)), op)
            return (run, configure, adjust, draw(_ending), Resume(lane), Run(lane, draw(_prompt)))
        case _:  # a branch inside of what was said, and more said there
            at = draw(st.integers(0, 30))
            return (MakeLane(2, at), AppendEntry(2, draw(_text), draw(st.booleans())), MakeLane(1, at), Run(1, prompt))


_single = st.one_of(_work, _direct, _on_lanes, _trouble).map(lambda step: (step,))
_nothing: st.SearchStrategy[tuple[Step, ...]] = st.just(())  # what the others shrink to
_replies = st.lists(_reply, min_size=1, max_size=6).map(tuple)


def programs(*, phrases_max: int) -> st.SearchStrategy[Program]:
    """Programs of at most that many phrases, of one to five steps each."""
    phrase = st.one_of(_nothing, _phrases(), _phrases(), _phrases(), _single)
    phrases = st.lists(phrase, min_size=phrases_max // 2, max_size=phrases_max)
    steps = phrases.map(lambda each: tuple(step for phrase in each for step in phrase))
    return st.builds(Program, steps, st.lists(_replies, min_size=1, max_size=4).map(tuple))


def programs_of(
    mix: st.SearchStrategy[tuple[Step, ...]],
    special: st.SearchStrategy[Reply] | None = None,
    first: st.SearchStrategy[tuple[Reply, ...]] | None = None,
) -> st.SearchStrategy[Program]:
    """Programs that are about one thing, two phrases of it, with something else between them.

    ``special``: replies that the mix has something to do with, where others would not do. ``first``: what every other
    prompt gets first.
    """
    steps = st.tuples(mix, st.one_of(_nothing, _single, _phrases()), mix)
    lasting = st.builds(lambda first, rest: (first, *rest), _lasting, _replies)
    replies = st.one_of(lasting, lasting, _replies)
    if special is not None:
        each = st.integers(0, 3).flatmap(lambda number: special if number else _reply)
        replies = st.lists(each, min_size=1, max_size=4).map(tuple)
    prompts = st.lists(replies, min_size=2, max_size=4).map(tuple)
    if first is not None:
        about = st.builds(lambda first, rest: (*first, *rest), first, _replies)
        prompts = st.tuples(about, lasting, st.one_of(about, _replies), lasting)
    return st.builds(Program, steps.map(lambda each: tuple(step for phrase in each for step in phrase)), prompts)
