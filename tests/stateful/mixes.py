"""Phrases that bring out one thing each: what is said to a lane that hangs, waits, is aborted, killed, or faulted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from hypothesis import strategies as st

from tests.stateful.again import Retry
from tests.stateful.delivery import deliveries
from tests.stateful.hooks import Hooks, hooks, hooks_about_summaries
from tests.stateful.kin import FROM_NEWEST, KIN
from tests.stateful.moves import DeleteBranch, KeepHandle, Navigate, RenameBranch, Rewind, changes_of, moves_of, uses
from tests.stateful.people import decisions
from tests.stateful.programs import (
    RETRY_AFTER_MS,
    Abort,
    Accept,
    Advance,
    AppendEntry,
    Call,
    Close,
    Configure,
    Drive,
    FailWrite,
    Kill,
    KillAt,
    LeaveDrive,
    MakeLane,
    Program,
    Reply,
    Result,
    Resume,
    Run,
    Step,
    ToolName,
    programs_of,
)
from tests.stateful.questions import answers
from tests.stateful.summing import Summing, compacts, leaves, summings
from tests.stateful.talk import Say, Submit, talk

Phrase = tuple[Step, ...]

lane = st.sampled_from([0, 0, 0, 1])
handle = st.sampled_from([0, 0, 1])
prompt = st.integers(0, 3)
op = st.one_of(st.none(), st.none(), st.integers(0, 5))
fault: st.SearchStrategy[Step] = st.builds(FailWrite, st.integers(1, 4), st.sampled_from(["before", "half", "after"]))
trouble: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from([Kill(), Close(), Advance()]), st.builds(KillAt, st.integers(0, 9)), fault
)
sooner: st.SearchStrategy[Step] = st.one_of(st.builds(KillAt, st.integers(0, 3)), fault)
"""What a step right behind it meets."""


def some(step: st.SearchStrategy[Step], most: int = 3, least: int = 1) -> st.SearchStrategy[Phrase]:
    return st.lists(step, min_size=least, max_size=most).map(tuple)


@st.composite
def talking(draw: st.DrawFn) -> Phrase:
    """Something is said to a lane, and it goes on."""
    on = draw(lane)
    run = Run(on, draw(prompt), draw(op), draw(handle))
    write = st.builds(AppendEntry, st.just(on), st.sampled_from(["appended", None]), st.booleans())
    said: st.SearchStrategy[Phrase] = some(st.one_of(talk(st.just(on)), talk(st.just(on)), write), 4)
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, wait=False), Drive(on, handle=1)])
    match draw(st.integers(0, 7)):
        case 0:
            return (run, *draw(said), draw(trouble), draw(on_with))
        case 1:
            return (Accept(on, draw(prompt), None, draw(handle)), *draw(said), draw(on_with), *draw(said))
        case 2 | 6 | 7:  # what is given back, and what becomes the next operation
            return (run, *draw(said), Abort(on), *draw(said), draw(trouble), draw(on_with), Abort(on), draw(on_with))
        case 3:  # dies or fails where it is said
            return (run, draw(sooner), *draw(said), draw(on_with), *draw(said), draw(on_with))
        case 4:  # dies or fails where it is placed
            return (run, *draw(said), Kill(), draw(trouble), draw(on_with), draw(on_with), Result(on, 0))
        case _:
            return (*draw(said), run, *draw(said), draw(on_with))


@st.composite
def moving(draw: st.DrawFn) -> Phrase:
    """A lane moves about, or its branch gets another name, or is deleted."""
    on, again = draw(lane), draw(prompt)
    run, ended = Run(on, draw(prompt), draw(op), draw(handle)), (Abort(on), Drive(on))
    move, change = moves_of(on), changes_of(on)
    match draw(st.integers(0, 7)):
        case 0 | 1:  # another path, and on it
            return (run, *ended, *draw(some(move, 2)), Run(on, again), draw(trouble), *ended, draw(move))
        case 2:  # refused while something is open
            return (run, draw(st.one_of(move, change)), draw(change), draw(trouble), draw(move), Resume(on))
        case 3:  # dies or fails where it moves
            return (run, *ended, draw(sooner), *draw(some(move, 2)), Run(on, again), draw(trouble), Resume(on))
        case 4:  # what was given back or waits, when the lane moves
            return (run, *draw(some(talk(st.just(on)), 2)), *ended, *draw(some(move, 2)), Resume(on), run)
        case 5:  # another name, with what waits there, and under the old one something new
            name = (on + draw(st.integers(1, 2))) % 3
            said = draw(some(talk(st.just(on)), 2))
            renamed = (KeepHandle(on), draw(sooner), RenameBranch(on, name), draw(uses))
            return (*ended, *said, *ended, *renamed, Run(name, again), *draw(some(uses, 2)))
        case 6:  # gone, and there again
            deleted = (KeepHandle(on), draw(change), draw(uses), DeleteBranch(on), draw(uses))
            return (run, *ended, *deleted, MakeLane(on, draw(st.integers(0, 9))), draw(uses))
        case _:  # dies or fails where a branch changes
            return (*ended, KeepHandle(on), draw(sooner), draw(change), draw(uses), Run(on, again), draw(uses))


@st.composite
def hooked(draw: st.DrawFn) -> Phrase:
    """A run whose hooks speak, hang, and fail; and whatever comes between."""
    on, again = draw(lane), draw(prompt)
    run, ended = Run(on, draw(prompt), draw(op), draw(handle)), (Abort(on), Drive(on))
    said = some(talk(st.just(on)), 2)
    on_with = st.sampled_from([Resume(on), Resume(on), Drive(on), Drive(on, wait=False), Drive(on, handle=1)])
    match draw(st.integers(0, 5)):
        case 0:  # interrupted where it hangs
            return (run, Kill(), draw(on_with), draw(trouble), draw(on_with), *ended)
        case 1:  # or on the way
            return (draw(sooner), run, draw(on_with), draw(trouble), draw(on_with), draw(trouble), draw(on_with))
        case 2:  # aborted there
            return (run, draw(trouble), *draw(said), *ended, draw(moves_of(on)))
        case 3:  # something is said meanwhile, and configured
            configure = Configure(on, draw(st.sampled_from([None, 1])), draw(st.sampled_from([None, 0, 1])), 1)
            return (run, *draw(said), configure, draw(trouble), draw(on_with), draw(trouble), draw(on_with))
        case 4:  # it moves
            return (run, *ended, draw(moves_of(on)), draw(sooner), draw(moves_of(on)), Run(on, again), draw(on_with))
        case _:  # killed at every turn
            kills = st.builds(KillAt, st.integers(0, 12))
            return (draw(kills), run, draw(kills), draw(on_with), draw(kills), draw(on_with), draw(on_with))


def calls_of(*tools: ToolName) -> st.SearchStrategy[Reply]:
    """Answers with calls of such tools."""
    ends: st.SearchStrategy[Literal["ok", "raise", "stop"]] = st.sampled_from(["ok", "ok", "ok", "raise", "stop"])
    call = st.builds(Call, st.sampled_from(tools), ends, st.sampled_from([0, 0, 1, 1, 2]), st.integers(0, 3))
    return st.builds(Reply, st.just("calls"), st.lists(call, min_size=1, max_size=4).map(tuple))


@st.composite
def answering(draw: st.DrawFn, answers: Callable[[st.SearchStrategy[int]], st.SearchStrategy[Step]]) -> Phrase:
    """Calls wait for somebody outside, who answers, or does not."""
    on = draw(lane)
    run = Run(on, draw(prompt), None, draw(handle))
    answer = answers(st.just(on))
    decided = some(answer, 2)
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, answers=True), Drive(on, handle=1, answers=True)])
    match draw(st.integers(0, 8)):
        case 0 | 1:
            return (run, *draw(decided), draw(trouble), draw(on_with), *draw(decided))
        case 2:
            return (Accept(on, draw(prompt), None, draw(handle)), Drive(on), draw(answer), draw(on_with), draw(answer))
        case 3:  # void by an abort
            return (run, *draw(decided), draw(trouble), Abort(on), draw(answer), draw(on_with), Result(on, 0))
        case 4 | 5:  # asked again before what was begun runs once more, and answered where nothing drives
            again = (Kill(), draw(on_with), draw(answer), draw(st.sampled_from([Kill(), Advance(), KillAt(1)])))
            return (run, *draw(decided), *again, draw(answer), draw(on_with), draw(answer), Kill(), draw(on_with))
        case 6:  # dies or fails where it is asked, and where it is answered
            return (draw(sooner), run, draw(on_with), draw(sooner), draw(answer), draw(answer), draw(on_with))
        case 7:  # nobody answers in time
            return (run, draw(trouble), Advance(), draw(answer), draw(on_with), Advance(), Advance(), draw(on_with))
        case _:  # configured away meanwhile, and perhaps back
            away, back = Configure(on, tools=draw(st.sampled_from([0, 3, 3]))), Configure(on, tools=3)
            return (run, *draw(decided), away, draw(answer), draw(on_with), back, draw(answer), draw(on_with))


@st.composite
def calling_agents(draw: st.DrawFn) -> Phrase:
    """An agent runs as a tool, and something happens to it, or to who called it."""
    on, called = draw(lane), st.sampled_from([FROM_NEWEST, FROM_NEWEST, FROM_NEWEST + 1])
    run = Run(on, draw(st.sampled_from([0, 2])), draw(op), draw(handle))
    one = draw(called)
    to_it: st.SearchStrategy[Step] = st.one_of(
        talk(called),
        st.builds(Abort, called),
        st.builds(Configure, called, st.sampled_from([None, 1]), st.sampled_from([None, 0]), st.just(1)),
        st.sampled_from([Drive(one), Resume(one), Accept(one, 1), Run(one, 1), LeaveDrive(one), Result(one, 0)]),
    )
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, wait=False), Drive(on, handle=1)])
    match draw(st.integers(0, 5)):
        case 0:  # the process ends where it runs, and again
            return (run, draw(trouble), draw(on_with), draw(trouble), draw(on_with), Resume(on))
        case 1:  # or anywhere on the way
            return (KillAt(draw(st.integers(0, 20))), run, draw(trouble), draw(on_with), Resume(on))
        case 2:  # meanwhile
            return (run, *draw(some(to_it)), draw(trouble), draw(on_with), *draw(some(to_it, 2)), draw(on_with))
        case 3:  # who called it is aborted, or it is
            abort = st.sampled_from([Abort(on), Abort(on), Abort(one)])
            return (run, *draw(some(to_it, 1, 0)), draw(sooner), draw(abort), draw(on_with), draw(abort), draw(on_with))
        case 4:  # it waits, perhaps
            waits = Drive(on, wait=draw(st.booleans()))
            return (Accept(on, 2 * draw(st.integers(0, 1))), waits, draw(to_it), Advance(), draw(on_with), Advance())
        case _:  # its lane goes on by itself
            return (
                run,
                Submit(one, 1),
                *draw(some(to_it, 2)),
                Abort(one),
                Resume(on),
                Drive(one),
                draw(trouble),
                Resume(one),
            )


@st.composite
def trying_again(draw: st.DrawFn) -> Phrase:
    """Something fails, reaches a limit or is aborted, and is tried again."""
    on = draw(st.sampled_from([0, 0, 0, 1, FROM_NEWEST]))
    whose = min(on, 1) if on < FROM_NEWEST else 0
    by = draw(handle)
    run = Run(whose, draw(st.sampled_from([0, 2])), draw(op), by)
    again = st.builds(Retry, st.just(on), op, op, st.booleans(), handle)
    meanwhile: st.SearchStrategy[Step] = st.one_of(
        talk(st.just(whose)),
        st.builds(AppendEntry, st.just(whose), st.sampled_from(["appended", None]), st.booleans()),
        st.sampled_from([Advance(), Kill(), Close(), Navigate(whose, 1), Rewind(whose)]),
        again,
    )
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, wait=False), Drive(on, handle=1)])
    match draw(st.integers(0, 3)):
        case 0:  # at once, and again
            return (run, draw(again), draw(trouble), draw(on_with), draw(again), draw(on_with), draw(again))
        case 1:  # aborted before
            return (run, *draw(some(meanwhile, 2, 0)), Abort(whose), Resume(whose), draw(again), draw(on_with))
        case 2:  # dies or fails where it is
            return (run, *draw(some(meanwhile, 2)), draw(sooner), draw(again), draw(on_with), draw(again), Advance())
        case _:  # time passes
            return (run, Advance(), draw(trouble), Resume(whose), Advance(), *draw(some(meanwhile, 2)), Resume(on))


@st.composite
def summarizing(draw: st.DrawFn) -> Phrase:
    """A conversation gets long and is summarized, or left with a summary; whatever comes between."""
    on = draw(lane)
    more = Run(on, draw(prompt), draw(op), draw(handle))
    talked = (
        Run(on, draw(prompt)),
        Abort(on),
        Drive(on),
        Run(on, draw(prompt), None, draw(handle)),
        Abort(on),
        Drive(on),
    )
    step: st.SearchStrategy[Step] = st.one_of(compacts(on), compacts(on), leaves(on))
    write = st.builds(AppendEntry, st.just(on), st.sampled_from(["appended", None]), st.booleans())
    said = some(st.one_of(talk(st.just(on)), write), 3)
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, wait=False), Drive(on, handle=1)])
    match draw(st.integers(0, 7)):
        case 0:  # dies or fails where it is summarized
            return (*talked, draw(sooner), draw(step), draw(sooner), draw(on_with), draw(on_with), more)
        case 1:  # interrupted again and again
            again = [s for _ in range(draw(st.integers(1, 4))) for s in (draw(trouble), draw(on_with))]
            return (*talked, draw(step), *again, more)
        case 2:  # aborted
            return (*talked, draw(step), draw(trouble), *draw(said), Abort(on), draw(on_with), draw(step))
        case 3:  # something is said meanwhile
            return (*talked, draw(step), *draw(said), draw(trouble), draw(on_with), *draw(said), draw(on_with))
        case 4:  # and again
            return (*talked, draw(compacts(on)), more, Abort(on), Drive(on), draw(step), more)
        case 5:  # runs that get too long
            return (*talked, more, *draw(said), draw(trouble), draw(on_with), Abort(on), Drive(on), more)
        case 6:  # a branch somewhere in it
            at = draw(st.integers(0, 30))
            return (*talked, draw(step), MakeLane(2, at), Run(2, draw(prompt)), draw(step), draw(moves_of(on)), more)
        case _:  # configured on the way
            configure = Configure(on, draw(st.sampled_from([None, 1])), None, 1)
            return (*talked, draw(step), configure, draw(trouble), draw(on_with), draw(moves_of(on)), draw(step))


@st.composite
def deciding(draw: st.DrawFn) -> Phrase:
    """Hooks are asked about a conversation that others have written; they think, and something comes between."""
    on = draw(lane)
    written = (MakeLane(on), *(AppendEntry(on), AppendEntry(on, assistant=True)) * draw(st.integers(1, 3)))
    run, step = st.builds(Run, st.just(on), prompt, st.none(), handle), st.one_of(compacts(on), leaves(on))
    asked = st.one_of(run, run, step)
    said = some(st.one_of(talk(st.just(on)), st.just(Say(on)), st.just(AppendEntry(on))), 2)
    on_with = st.sampled_from([Resume(on), Drive(on), Drive(on, handle=1)])
    match draw(st.integers(0, 3)):
        case 0 | 1:
            return (*written, draw(asked), *draw(said), draw(trouble), draw(on_with), *draw(said), draw(asked))
        case 2:  # dies or fails where they are asked, and again
            return (*written, draw(sooner), draw(asked), draw(on_with), draw(trouble), draw(on_with), draw(asked))
        case _:  # aborted
            return (*written, draw(asked), draw(trouble), Abort(on), draw(on_with), *written[1:], draw(asked))


_circling: st.SearchStrategy[tuple[Reply, ...]] = st.builds(
    lambda reply, times: (reply,) * times,
    st.sampled_from(
        [
            Reply("calls", (Call("safe"),)),
            Reply("calls", (Call("never"), Call("safe"))),
            Reply("calls", (Call("safe"), Call("agent", prompt=2))),
            Reply("fail", after_ms=RETRY_AFTER_MS),
            Reply("fail"),
        ]
    ),
    st.integers(1, 5),
)

_called = st.builds(Call, st.sampled_from(["agent", "kin"]), prompt=st.integers(0, 3))
_beside = st.builds(
    Call, st.sampled_from(["safe", "never", "alone", "agent"]), hang=st.integers(0, 1), prompt=st.integers(0, 3)
)
calling = st.builds(
    lambda calls, last: Reply("calls", (*calls, last)),
    st.lists(_beside, max_size=2),
    st.one_of(_called, _called, _beside),
)
"""Answers that call agents."""


MIXES: dict[str, st.SearchStrategy[Phrase]] = {
    "what is said to a lane": talking(),
    "lanes that move, branches that are renamed or deleted": moving(),
    "what hooks say to runs, calls and moves": hooked(),
    "what people are asked": answering(decisions),
    "what is delivered later": answering(deliveries),
    "what tools ask": answering(answers),
    "agents as tools": calling_agents(),
    "what is tried again, and limits": trying_again(),
    "what is summarized": summarizing(),
    "what hooks decide about summaries": deciding(),
}
FIRST: dict[str, st.SearchStrategy[tuple[Reply, ...]]] = {
    "agents as tools": calling.map(lambda reply: (reply,)),
    "what is tried again, and limits": st.one_of(_circling, calling.map(lambda reply: (reply,))),
}
"""What models answer first to every other prompt of a mix."""
_brief: st.SearchStrategy[Reply] = st.one_of(
    st.builds(Reply, usage=st.booleans()),
    st.builds(Reply, st.sampled_from(["long", "hang"])),
    calls_of("safe", "safe", "never", "alone"),
)
SPECIAL: dict[str, st.SearchStrategy[Reply]] = {
    "what people are asked": calls_of("asked", "maybe", "maybe", "check", "check", "locked", "locked", "safe", "never"),
    "what is delivered later": calls_of("later", "later", "later", "safe", "alone", "maybe"),
    "what is summarized": _brief,
    "what hooks decide about summaries": _brief,
    "what tools ask": calls_of("query", "query", "survey", "survey", "safe", "alone", "later"),
}
"""Replies that a mix has something to do with, where others would not do."""
_summed: st.SearchStrategy[Reply] = st.one_of(
    st.builds(Reply, st.sampled_from(["text", "length", "empty", "calls"]), usage=st.booleans()),
    st.builds(Reply, st.sampled_from(["hang", "hang", "hang", "cut", "long"])),
    st.builds(Reply, st.just("fail"), after_ms=st.sampled_from([None, 0, RETRY_AFTER_MS])),
)
HOOKS: dict[str, st.SearchStrategy[Hooks]] = {
    "what hooks say to runs, calls and moves": hooks(),
    "what is summarized": st.one_of(st.just(()), hooks_about_summaries),
    "what hooks decide about summaries": hooks_about_summaries,
}
"""The hooks of the agents, in programs of a mix that is about them."""
SUMMED = ("what is summarized", "what hooks decide about summaries")

SHARES = {
    "lanes that move, branches that are renamed or deleted": 0.6,
    "what hooks say to runs, calls and moves": 0.6,
    "what people are asked": 0.3,
    "agents as tools": 0.5,
    "what is tried again, and limits": 0.5,
    "what is delivered later": 0.2,
    "what tools ask": 0.3,
    "what hooks decide about summaries": 0.8,
}
"""Of mixes whose programs are long, how many are played for one of another mix."""


def programs_about(mix: str) -> st.SearchStrategy[Program]:
    """Programs of one of the mixes."""
    found = programs_of(MIXES[mix], SPECIAL.get(mix), FIRST.get(mix))
    if mix in SUMMED:
        summed = st.lists(_summed, max_size=5).map(tuple)
        return st.builds(_with_summaries, found, HOOKS[mix], summings, summed)
    return st.builds(_with_hooks, found, HOOKS[mix]) if mix in HOOKS else found


def _with_summaries(program: Program, hooks: Hooks, summing: Summing, summaries: tuple[Reply, ...]) -> Program:
    return replace(_with_hooks(program, hooks), summing=summing, summaries=summaries)


def _with_hooks(program: Program, hooks: Hooks) -> Program:
    """No agents are called beside hooks.

    What hooks say of results has no order among calls that run together: then each answer has one that runs.
    """
    prompts = tuple(tuple(_without_agents(reply) for reply in replies) for replies in program.prompts)
    if any(hook.point == "after_tool" for hook in hooks):
        prompts = tuple(tuple(_with_one_call(reply) for reply in replies) for replies in prompts)
    return replace(program, prompts=prompts, hooks=hooks)


def _without_agents(reply: Reply) -> Reply:
    return replace(reply, calls=tuple(replace(c, tool="safe") if c.tool in KIN else c for c in reply.calls))


def _with_one_call(reply: Reply) -> Reply:
    return replace(reply, calls=reply.calls[:1]) if reply.kind == "calls" else reply
