"""Everything that holds of a history that has come to its end; each complaint is a line that says what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage, ToolCallPart, ToolResultMessage
from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.requests import Navigate
from agentlane.data.results import OperationResult
from agentlane.data.usage import UsageTotals
from agentlane.data.writes import DeleteValue, SetValue
from agentlane.driver.tool_results import error_text, seal_value
from agentlane.driver.views import resolve_call
from agentlane.ids import call_id
from agentlane.machine.outcomes import ABORTED, INTERRUPTED, NOT_STARTED
from agentlane.session import Session
from agentlane.testing.decoded import entry_of, state_of
from agentlane.testing.invariants import check_nothing_written, check_trace, check_trace_against
from agentlane.testing.matrix.answers import answers_of, check_asked, is_refusal, was_deferred, was_stranded
from agentlane.testing.matrix.family import family_of, named, plain_names, tool_of
from agentlane.testing.matrix.history import History, Life
from agentlane.testing.matrix.hooked import (
    check_begun,
    check_sent,
    check_shown,
    is_blocked,
    replaced_answers,
    replaced_result,
)
from agentlane.testing.matrix.lives import live
from agentlane.testing.matrix.oracle import Oracle, Verdict, shown
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.matrix.story import Chapter, Step, chapters, tell, uncut
from agentlane.testing.matrix.summarized import (
    check_asked_in_order,
    check_summaries,
    check_summarized,
    exhausted,
    requests_of,
)
from agentlane.testing.matrix.witness import Start
from agentlane.testing.playback import PlayedModel
from agentlane.testing.trace import Submitted
from agentlane.tool import NotStarted, PendingResult, RetryTool


@dataclass
class Ended:
    """What a history came to: its stories by lane, all calls and the operations whose abort was committed, and what is
    wrong with it."""

    stories: dict[str, list[Step]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    aborts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    whole: bool = False
    """Whether every operation is completed, and no summary was interrupted too often."""
    strayed: bool = False
    """Whether a navigation was not completed, so that what came behind it stands elsewhere."""


async def check_history(history: History[Any], oracle: Oracle, *, again: Scenario[Any] | None = None) -> Ended:
    """Open the session once more: see what came of the history, and everything that is wrong with it.

    With ``again`` the process that looks then does as all before it did, and must find that there is nothing to do.
    """
    before, stored = len(history.trace), history.place.content()
    effects = len(history.witness.starts), len(history.witness.asked)
    ended = Ended()

    async def look(life: Life[Any]) -> bool:
        ended.complaints += await check_found(history, life, oracle)
        open_now = life.session.open_operations()
        ended.complaints += [f"operation {each.operation_id} is left open" for each in open_now]
        if not ended.complaints:  # else it cannot be told as a story
            await _check_session(history, life.session, oracle, ended)
        return again is not None and not ended.complaints

    if again is not None:
        await live(history, again, look=look)
    else:
        life = await history.open()
        try:
            await look(life)
        finally:
            await life.session.close()
    ended.complaints += check_nothing_written(history.trace, since=before)
    if (len(history.witness.starts), len(history.witness.asked)) != effects:
        ended.complaints.append("I15: done again with nothing to do, it started tools or asked models")
    if history.place.content() != stored:
        ended.complaints.append("I15: opening the session changed its file")
    return ended


async def check_found(history: History[Any], life: Life[Any], oracle: Oracle) -> list[str]:
    """What is wrong with what a process found when it opened the session, by itself and by what was told before."""
    found = list(await oracle.sound(life.held, life.findings.left, hooked=history.asks("after_tool")))
    found += check_trace(history.trace)
    return found + await check_trace_against(history.trace, life.held)


async def _check_session(history: History[Any], session: Session, oracle: Oracle, ended: Ended) -> None:
    values = await session._runtime.storage.values(addresses.RESULT)
    results = {id: codec.RESULT.decode(payload, id) for id, payload in values.items()}
    history.results = sorted(results.values(), key=lambda each: (each.started_at, each.operation_id))
    entries: dict[str, Entry] = {}
    names = _names(history, session.lanes())
    requests = requests_of(history)
    stories: dict[str, list[Step]] = {}
    for name in session.lanes():
        branch = session.branch(name)
        path = await branch.entries(newest_first=False)
        entries.update({entry.id: entry for entry in path})
        if name == "main":
            history.messages = await branch.messages()
        story = tell(path, results, names[name], requests)
        stories[name] = story
        ended.complaints += await _check_story(history, story, oracle, name)
    first = {name: next((each.result.operation_id for each in chapters(story)), "") for name, story in stories.items()}
    ended.stories = {plain: stories[name] for name, plain in plain_names(first).items()}
    for result in history.results:
        if result.to_tip is not None and result.to_tip not in entries:  # its lane went elsewhere
            path = await _path(session, result.to_tip)
            entries.update({entry.id: entry for entry in path})
            story = ended.stories[f"{result.lane}, left at {result.operation_id}"] = tell(
                path, results, {result.lane}, requests
            )
            ended.complaints += await _check_story(history, story, oracle, result.lane)
    ended.complaints += _check_requests(history, list(entries.values()))
    ended.complaints += await _check_ledger(session, entries, history.results)
    ended.complaints += check_summaries(history, entries, [each.row for each in await session.usage()])
    ended.complaints += _check_starts(history)
    ended.aborts = aborts_of(history)
    for story in ended.stories.values():
        for chapter in (each for each in chapters(story) if not each.cut):
            ended.complaints += _check_end(history, chapter, ended.aborts)
    ended.calls = [id for id, entry in entries.items() if isinstance(entry.body, ToolResultMessage)]
    bodies = [entry.body for entry in sorted(entries.values(), key=lambda each: each.seq)]
    given = [body for body in bodies if isinstance(body, ToolResultMessage)]
    ended.whole = all(each.status == "completed" for each in history.results) and not exhausted(history)
    ended.strayed = any(
        each.status != "completed" and isinstance(requests.get(each.operation_id), Navigate) for each in history.results
    )
    history.done = Counter(body.name for body in given if not body.is_error)
    history.interrupted = [body.name for body in given if INTERRUPTED in body.text]


def _names(history: History[Any], lanes: Sequence[str]) -> dict[str, set[str]]:
    """The names that each lane has, or had before it was renamed."""
    names = {lane: {lane} for lane in lanes}
    for commit in reversed([commit for commit in history.trace.facts if isinstance(commit, Submitted)]):
        if commit.name == "rename_branch":
            tips = [write for write in commit.writes if getattr(write, "address", ("",))[0] == addresses.BRANCH_TIP]
            old = next(write.address.key for write in tips if isinstance(write, DeleteValue))
            new = next(write.address.key for write in tips if isinstance(write, SetValue))
            for each in names.values():
                if new in each:
                    each.add(old)
    return names


async def _path(session: Session, tip: str) -> list[Entry]:
    rows = await session._runtime.storage.path(tip, newest_first=False)
    return [entry_of(row) for row in rows]


# Conversations.


async def _check_story(history: History[Any], story: list[Step], oracle: Oracle, lane: str) -> list[str]:
    """Every outcome is one that was had, and an uninterrupted run with those outcomes makes the same conversation."""
    agent = next((life.own_agent for life in history.lives if hasattr(life, "own_agent")), None)
    if agent is None:
        return []
    agent = named(agent, next((each.result.agent for each in chapters(story)), agent.name))
    story = uncut(story)
    verdict = await oracle.judge(story, agent, _terminates(history), lane=lane)
    found = list(verdict.complaints)
    found += check_summarized(history, story, verdict)
    for number, chapter in enumerate(chapters(story)):
        if chapter.summaries:
            found += check_asked_in_order(history, chapter, verdict.asked.get(number, []))
        for index, turn in enumerate(chapter.turns):
            if not chapter.summaries:
                found += _check_shown(history, verdict, chapter, number, index)
            for call, (id, body) in enumerate(turn.results):
                ran = (number, index, call) in verdict.ran
                found += _check_result(history, chapter, turn.answer.calls[call], id, body, ran=ran)
    return found


def _check_shown(history: History[Any], verdict: Verdict, chapter: Chapter, number: int, index: int) -> Iterator[str]:
    """Whatever was asked for this turn, at each attempt, was shown what an uninterrupted run shows."""
    wanted = verdict.shown.get((number, index))
    for asked in history.witness.asked:
        mine = asked.operation_id == chapter.result.operation_id and asked.purpose == "answer"
        if wanted is None or not mine:
            continue
        if _turn_of(asked.untouched, chapter) == index and shown(asked.untouched) != wanted:
            yield (
                f"I13: attempt {asked.attempt} at turn {index + 1} of {asked.operation_id} was shown "
                f"{list(asked.untouched)!r}, and an uninterrupted run shows {wanted!r}"
            )
        yield from check_sent(history.witness.hooked, asked.life, asked.operation_id, asked.attempt, asked.messages)


def _turn_of(messages: Sequence[Any], chapter: Chapter) -> int:
    """How many answers of the chapter a request was shown: those behind its last input."""
    last = max((i for i, each in enumerate(messages) if each == chapter.asked[-1]), default=-1)
    return sum(isinstance(each, AssistantMessage) for each in messages[last + 1 :]) - chapter.earlier


def _check_result(
    history: History[Any],
    chapter: Chapter,
    call: ToolCallPart,
    id: str,
    body: ToolResultMessage,
    *,
    ran: bool,
) -> Iterator[str]:
    """A result is what the call's tool gave, or the library's word where that is due."""
    starts = history.witness.of_call(id)
    found = [each for each in history.found_calls if each.call_id == id]
    cancelled = chapter.result.status == "aborted"
    what = f"call {id} of {call.name!r}"
    agent, hooked = named(_own_agent(history), chapter.result.agent), history.witness.hooked
    yield from check_begun(hooked, agent, call, starts)
    if not cancelled:
        yield from check_shown(hooked, agent, id)
    replaced = replaced_result(hooked, call, id, _limit_of(agent, call.name))
    if replaced == body:
        return
    if replaced is not None and not cancelled:
        yield f"{what} has the result {body.text!r}, and a hook put {replaced.text!r} in its place"
        return
    if INTERRUPTED in body.text:
        if not body.is_error:
            yield f"{what} is interrupted, and its result is no error"
        if not found:
            yield f"{what} is said to be interrupted, and no process found it under way"
        elif all(each.again and not each.maybe for each in found):
            yield f"{what} is said to be interrupted, though each process that found it could run it again"
        return
    if found and not any(each.again or each.asks for each in found):
        yield f"{what} was found under way where it must not run again, and its result does not say so: {body.text!r}"
    child = next((each for each in history.results if each.operation_id == id), None)
    if child is not None:
        yield from _check_child(what, child, body)
        return
    if not starts:
        if (body.text == NOT_STARTED and cancelled) or is_blocked(hooked, id, body):
            return
        if ran and not _refused_later(history, chapter, call, body) and not is_refusal(history, id, body):
            yield f"{what} has the result {body.text!r}, and its tool was never started"
        return
    if was_stranded(history, id, call.name, body):
        return
    last = starts[-1]
    if cancelled and body.text == NOT_STARTED and isinstance(last.error, NotStarted):
        return
    if cancelled and body.is_error and ABORTED in body.text:
        return
    if not last.ended:
        yield f"{what} has the result {body.text!r}, and its tool came to no end"
    elif last.error is not None:
        yield from _check_raised(history, what, last, body)
    elif isinstance(last.value, PendingResult):
        if not was_deferred(history, id):
            yield f"{what} has the result {body.text!r}, and its tool had none and nothing waited for one"
    else:
        limit = _limit_bytes(history, last)
        if seal_value(call, last.value, limit).message != body:
            yield f"{what} returned {last.value!r}, and its result says {body.text!r}"


def _check_child(what: str, child: OperationResult, body: ToolResultMessage) -> Iterator[str]:
    """A call that is another agent's run gives what that run came to."""
    says = {"completed": child.text, "aborted": ABORTED, "failed": child.error.message if child.error else child.code}
    if (says[child.status] or "") not in body.text or body.is_error != (child.status != "completed"):
        yield f"{what} has the result {body.text!r}, and its agent's run is {child.status}: {says[child.status]!r}"


def _check_raised(history: History[Any], what: str, start: Start, body: ToolResultMessage) -> Iterator[str]:
    tool = tool_of(history.lives[start.life - 1].own_agent, start.tool)
    error = start.error
    assert error is not None
    timed_out = tool.options.timeout_ms is not None and "did not end within" in body.text
    told = error_text(error) in body.text or "cancelled itself" in body.text
    if isinstance(error, RetryTool | NotStarted):
        told = str(error) in body.text
    if not body.is_error or not (timed_out or told):
        yield f"{what} raised {error!r}, and its result says {body.text!r}"


def _limit_bytes(history: History[Any], start: Start) -> int:
    return _limit_of(history.lives[start.life - 1].own_agent, start.tool)


def _limit_of(agent: Agent[Any, Any], name: str) -> int:
    tool = next((each.tools[name] for each in family_of(agent) if name in each.tools), None)
    return (None if tool is None else tool.options.max_result_bytes) or agent.limits.max_result_bytes


def _own_agent(history: History[Any]) -> Agent[Any, Any]:
    return next(life.own_agent for life in history.lives if hasattr(life, "own_agent"))


def _refused_later(history: History[Any], chapter: Chapter, call: ToolCallPart, body: ToolResultMessage) -> bool:
    """Whether some process could not start this call, and would say what the result says."""
    for commit in history.trace.commits():
        for write in commit[0].writes:
            if isinstance(write, SetValue) and write.address == addresses.op_config(chapter.result.operation_id):
                config = codec.CONFIG.decode(write.payload, "op.config")
                for life in history.lives:
                    if hasattr(life, "own_agent"):
                        problem = resolve_call(named(life.own_agent, config.agent), config, call).view.problem
                        if problem is not None and problem == body.text:
                            return True
    return False


def _terminates(history: History[Any]) -> dict[str, bool]:
    """Which calls wished to end their run, as their states said."""
    found: dict[str, bool] = {}
    for commit, _ in history.trace.commits():
        for write in commit.writes:
            if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE:
                state = state_of(write.payload)
                for index, call in enumerate(state.calls) if isinstance(state, Tools) else ():
                    if isinstance(call, OutcomeReady | Placed) and isinstance(state, Tools):
                        found[call_id(state.answer, index)] = call.terminate
    for start in history.witness.starts:
        if getattr(start.value, "terminate", False) is True:
            found[start.call_id] = True
    return found


# Requests, calls, operations.


def _check_requests(history: History[Any], entries: Sequence[Entry]) -> Iterator[str]:
    """An answer is interrupted where a process found its request under way, and nowhere else; none is from nowhere."""
    interrupted = set[str]()
    answers = Counter[str]()
    for entry in entries:
        body = entry.body
        if isinstance(body, AssistantMessage):
            if _is_interrupted(body):
                interrupted.add(entry.id)
            elif body.stop_reason not in ("error", "aborted") and body.model is not None:
                answers[_said(body)] += 1
    found = {each.answer for each in history.found_requests}
    yield from (f"answer {id} is said to be interrupted, and no process found it so" for id in interrupted - found)
    yield from (f"request {id} was found under way, and is not said to be interrupted" for id in found - interrupted)
    answered = [each for each in history.witness.asked if each.purpose == "answer"]
    given = Counter(_said(each.answer) for each in answered if each.answer is not None)
    given.update(map(_said, replaced_answers(history.witness.hooked)))
    for what, count in answers.items():
        if given and count > given[what]:
            yield f"the answer {what} is there {count} times, and the model gave it {given[what]} times"
    for life in history.lives:
        agents = family_of(life.own_agent) if hasattr(life, "own_agent") else ()
        for model in (model for each in agents for model in each.models.values()):
            if isinstance(model, PlayedModel):
                yield from (f"I10: the model of process {life.number}: {line}" for line in model.violations)


def _said(message: AssistantMessage) -> str:
    return f"{message.text!r} with calls {[(each.id, each.name) for each in message.calls]}"


async def _check_ledger(
    session: Session, entries: Mapping[str, Entry], results: Sequence[OperationResult]
) -> list[str]:
    spent = [each.row for each in await session.usage() if each.row.kind in ("attempt", "summary")]
    rows = [row for row in spent if row.kind == "attempt"]
    answers = {id for id, entry in entries.items() if isinstance(entry.body, AssistantMessage) and entry.body.model}
    charged = Counter(row.entry_id for row in rows)
    found = [f"answer {id} has {charged[id]} rows in the ledger" for id in sorted(answers) if charged[id] != 1]
    for result in results:
        totals = UsageTotals()
        for row in spent:
            if row.operation_id == result.operation_id:
                totals = totals.plus(row)
        if result.usage != totals:
            found.append(f"operation {result.operation_id} says that it used {result.usage}, and the ledger {totals}")
    for row in rows:
        entry = entries.get(row.entry_id or "")
        if entry is None:
            continue
        body = entry.body
        if isinstance(body, AssistantMessage) and _is_interrupted(body) and not row.usage.unknown:
            found.append(f"answer {entry.id} is interrupted, and its usage is said to be known")
    return found


def _check_starts(history: History[Any]) -> Iterator[str]:
    """Effects counted outside: never more than the policies and the deaths allow, and alike but for the attempt."""
    found = Counter(each.call_id for each in history.found_calls)
    yield from check_asked(history)
    for id in dict.fromkeys(each.call_id for each in history.witness.starts):
        starts = history.witness.begun(id)
        what = f"call {id} of {starts[0].tool!r}"
        answered = answers_of(history, id)
        if len(starts) > 1 + found[id] + answered:
            yield f"{what} was started {len(starts)} times, and was found under way {found[id]} times"
        if len(starts) > 1 and "never" in {each.policy for each in starts[:-1]}:
            yield f"I7: {what} must not run again, and was started {len(starts)} times"
        limit = history.lives[starts[0].life - 1].own_agent.limits.max_replays
        if len(starts) > 1 + limit + answered:
            yield f"{what} was started {len(starts)} times, and {limit} replays are allowed"
        if len({each.key for each in starts}) > 1:
            yield f"{what} was started with the keys {sorted({each.key for each in starts})}"
        attempts = [each.attempt for each in starts]
        if attempts != sorted(set(attempts)):
            yield f"{what} was started as attempts {attempts}"
        for each in starts:
            again = each.attempt > 1 if not answered else each.recovered and found[id] > 0  # an answer is no death
            if each.recovered != again:
                yield f"{what}: attempt {each.attempt} was told that recovered is {each.recovered}"


def aborts_of(history: History[Any]) -> set[str]:
    """Operations whose abort was asked of a store."""
    return {
        write.address.key
        for event in history.trace.facts
        if isinstance(event, Submitted) and event.name == "abort"
        for write in event.writes
        if isinstance(write, SetValue) and write.address.namespace == addresses.OP_STATE
    }


def _check_end(history: History[Any], chapter: Chapter, aborts: set[str]) -> Iterator[str]:
    """An operation is aborted only where that was asked for, and gives up beyond its bound and not before."""
    result = chapter.result
    if result.status == "aborted" and result.operation_id not in aborts:
        yield f"operation {result.operation_id} is aborted, and nobody asked for that"
    limits = next(life.own_agent.limits for life in history.lives if hasattr(life, "own_agent"))
    restarts = Counter(turn for turn, body in chapter.failed if _is_interrupted(body))
    most = max(restarts.values(), default=0)
    if result.code == "restarts_exhausted" and most <= limits.max_restarts:
        yield f"operation {result.operation_id} gave up after {most} restarts, and {limits.max_restarts} are allowed"
    if result.status == "completed" and chapter.turns and result.text != chapter.turns[-1].answer.text:
        yield f"operation {result.operation_id} has the text {result.text!r}, not that of its last answer"
    if result.status == "completed" and most > limits.max_restarts:
        yield f"operation {result.operation_id} was restarted {most} times, and {limits.max_restarts} are allowed"


def _is_interrupted(body: AssistantMessage) -> bool:
    return body.error is not None and body.error.code == "interrupted"
