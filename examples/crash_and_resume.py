"""An agent is killed with SIGKILL while its tools run in parallel, and goes on in a new process.

    python examples/crash_and_resume.py [--store sqlite|jsonl] [--keep]

Everything that the second process shows is read from the store. At the end the claims are checked against the store
and against a log of effects that is kept outside of it; the exit code is 1 if one of them does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from _folder_tools import TOOLS, Desk

import agentlane
from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    CallRecord,
    Entry,
    ModelRequest,
    OperationResult,
    Prompt,
    Session,
    Settled,
    StreamItem,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    open_session,
)
from agentlane.testing import ScriptedModel, call, say

OPERATION = "tidy-up-1"
TASK = "Find out where work is accepted and note it in NOTES.md. draft.txt and the stale build folder can go."
NOTES = "# Notes\n\nWork is accepted by `AgentLane.accept` in lane.py; driver/verbs.py does it.\n"
HELD = frozenset({"search", "write_file", "delete_folder"})
WAIT_S_MAX = 60.0


class Place(NamedTuple):
    """The files of one demo."""

    folder: Path
    store: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def effects(self) -> Path:
        return self.folder / "effects.log"


class LoggedModel(ScriptedModel):
    """The scripted model; it writes each request to the log of effects, as a provider would to its bill."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(
            [
                [say("I look around first."), call("list_files", path=".")],
                [
                    say("Now everything at once."),
                    call("search", text="def accept"),
                    call("read_file", path="ids.py"),
                    call("delete_file", path="draft.txt"),
                    call("write_file", path="NOTES.md", text=NOTES),
                    call("delete_folder", path="build"),
                    call("read_file", path="errors.py"),
                ],
                [
                    say("The deletion was interrupted, so I check before anything else."),
                    call("list_files", path="build"),
                ],
                "NOTES.md is written and draft.txt is gone. build is only half deleted: shall I delete the rest?",
            ]
        )
        self._desk = desk

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        print(f"  model  is asked, and shown {len(request.messages)} messages", flush=True)
        self._desk.note("model", "start", messages=len(request.messages))
        return super().stream(request)


def make_agent(desk: Desk) -> Agent[Desk]:
    """The agent, the same in each process. Three calls run at once; the others wait for a free slot."""
    return Agent("tidy", model=LoggedModel(desk), tools=TOOLS, deps=desk, max_parallel=3)


# The first process: it works until it is killed.


async def first_process(place: Place, ready: int) -> None:
    """Accept and drive. When three tools are held half way, say so through ``ready`` and wait for the end."""
    desk = Desk(place.project, place.effects, hold=HELD)
    async with open_session(place.store) as session:
        lane = await session.lane("main", make_agent(desk))
        admitted = await lane.accept(Prompt(TASK), operation_id=OPERATION)
        print(f"  lane   operation {admitted.operation_id} is accepted: durable, and not started", flush=True)
        driving = asyncio.create_task(lane.drive(admitted.operation_id))
        holding = asyncio.create_task(desk.all_held.wait())
        await asyncio.wait({driving, holding}, return_when=asyncio.FIRST_COMPLETED)
        if driving.done():
            raise SystemExit(f"the run ended before it could be killed: {await driving}")
        operation = lane.inspect().operation
        seen = [each.status for each in operation.calls] if operation is not None else []
        os.write(ready, json.dumps(seen).encode() + b"\n")
        await driving


# The second process: it shows what is in the store, drives, and shows what came of it.


async def second_process(place: Place) -> None:
    """Open the store, show what it holds, drive the operation to its end, show the conversation."""
    desk = Desk(place.project, place.effects)
    async with open_session(place.store, create=False) as session:
        lane = await session.lane("main", make_agent(desk))
        title("2", f"A new process ({os.getpid()}) opens the store. Opening starts nothing; this is what it finds:")
        await show_conversation(lane)
        await show_calls(lane)
        title("3", "It drives the operation:")
        outcome = await lane.drive(OPERATION)
        assert isinstance(outcome, Settled), outcome
        print(f"  lane   operation {OPERATION} is {outcome.result.status}", flush=True)
        title("4", "The conversation as the store holds it now:")
        await show_conversation(lane)
        show_ledger(session, outcome.result)


async def show_calls(lane: AgentLane[Desk]) -> None:
    """The open operation's calls: what the store says of each, and what follows from that."""
    operation = lane.inspect().operation
    assert operation is not None
    answer = next(e.body for e in await lane.entries(limit=1, types=["assistant"]))
    assert isinstance(answer, AssistantMessage)
    print(
        f"\n  operation {operation.operation_id} is {operation.status}, at {operation.at!r}, turn {operation.turn}:\n"
    )
    print(f"  {'call':<23} {'in the store':<31} so a drive will")
    for asked, record in zip(answer.calls, operation.calls, strict=True):
        state, plan = verdict(record)
        print(f"  {short(asked):<23} {state:<31} {plan}")


def verdict(record: CallRecord) -> tuple[str, str]:
    """What the store says of a call, and what a drive makes of that."""
    match record.status, record.policy:
        case "outcome_ready", _:
            return "outcome staged", "place it, and not run the tool"
        case "planned", _:
            return "planned, not started", "start it"
        case "effect_pending", "never":
            return "started, no outcome, never", "not run it: outcome unknown"
        case "effect_pending", policy:
            return f"started, no outcome, {policy}", "run it again"
        case status, _:
            return status, ""


async def show_conversation(lane: AgentLane[Desk]) -> None:
    """Every entry of the lane's path, a line each; who made a tool's result is in its details."""
    for entry in await lane.entries(newest_first=False):
        match entry.body:
            case UserMessage(content=content):
                tell("user", texts(content))
            case AssistantMessage() as answer:
                tell("model", answer.text)
                for asked in answer.calls:
                    print(f"            asks for {short(asked)}")
            case ToolResultMessage() as result:
                author = f"by process {made_by(result)}" if result.details else "by the library, an error"
                content = texts(result.content)
                tell("result", f"{result.name} {author}: {shortened(content, 60) if result.details else content}")
            case _:
                pass


def show_ledger(session: Session, result: OperationResult) -> None:
    totals = session.stats().usage
    print(
        f"\n  {result.turns} turns, {totals.rows} model requests in the ledger, {totals.unknown_rows} of unknown cost, "
        f"{totals.input_tokens + totals.output_tokens} tokens"
    )


# The checks: the parent compares the store with the log of effects.


async def check(place: Place, first: int, second: int, seen: list[str]) -> list[tuple[str, bool]]:
    """Each claim of the demo, and whether it holds."""
    log = [json.loads(each) for each in place.effects.read_text().splitlines()]
    async with open_session(place.store, read_only=True) as session:
        lane = await session.lane("main", make_agent(Desk(place.project, place.effects)))
        entries = await lane.entries(newest_first=False)
        record = await lane.result(OPERATION)
        open_operations = session.open_operations()
    at = next(i for i, e in enumerate(entries) if isinstance(e.body, AssistantMessage) and len(e.body.calls) > 1)
    batch = entries[at].body
    assert isinstance(batch, AssistantMessage)
    results = results_behind(entries, at)
    search, read, delete_file, write, delete_folder, late = results

    def starts(index: int) -> list[int]:
        """The processes that started the batch's call ``index``, by the log; a result has the id of its call."""
        call_id = entries[at + 1 + index].id
        return [each["process"] for each in log if each["event"] == "start" and each.get("call") == call_id]

    asked = [each["process"] for each in log if each["what"] == "model"]
    keys = {each["key"] for each in log if each["event"] == "start" and each["what"] == "write_file"}
    deletion = [each["event"] for each in log if each["what"] == "delete_folder"]
    return [
        (
            "at the kill the store held two staged outcomes behind an unfinished call, and one call not started",
            seen == ["effect_pending", "outcome_ready", "outcome_ready", "effect_pending", "effect_pending", "planned"],
        ),
        (
            "the safe call ran twice: begun by the first process, again and to its end by the second",
            starts(0) == [first, second] and made_by(search) == second and not search.is_error,
        ),
        (
            "staged outcomes were kept: both tools ran once, in the first process, and theirs are the results",
            starts(1) == starts(2) == [first] and made_by(read) == made_by(delete_file) == first,
        ),
        (
            "the idempotent call ran again under the same key, and left one whole file and no draft",
            starts(3) == [first, second]
            and len(keys) == 1
            and made_by(write) == second
            and (place.project / "NOTES.md").read_text() == NOTES
            and not list(place.project.glob(".NOTES.md.*")),
        ),
        (
            "the never call started exactly once, and its result says that the outcome is unknown",
            starts(4) == [first]
            and deletion == ["start", "half way"]
            and delete_folder.is_error
            and delete_folder.details is None
            and "no outcome was saved" in delete_folder.text,
        ),
        ("the call that had not started ran once, in the second process", starts(5) == [second] == [made_by(late)]),
        (
            "each call has one result, in the order in which the model asked",
            [each.name for each in results] == [each.name for each in batch.calls],
        ),
        (
            "the model was not asked again for an answer that was settled: twice before the kill, twice after",
            asked == [first, first, second, second] and record is not None and record.usage.rows == 4,
        ),
        (
            "the operation is completed, and nothing is open",
            record is not None and record.status == "completed" and not open_operations,
        ),
    ]


def results_behind(entries: list[Entry], at: int) -> list[ToolResultMessage]:
    """The tool results directly behind the entry at that place."""
    found: list[ToolResultMessage] = []
    for entry in entries[at + 1 :]:
        if not isinstance(entry.body, ToolResultMessage):
            break
        found.append(entry.body)
    return found


def made_by(result: ToolResultMessage) -> int | None:
    """The process whose tool gave this result; None for one that the library wrote."""
    return result.details["process"] if result.details else None


# The parent: it starts both processes, and kills the first.


def run_demo(place: Place) -> int:
    files = make_project(place.project)
    print("agentlane: an agent is killed in the middle of its work, and goes on in a new process.\n")
    print(f"  folder  a copy of agentlane's own source, {files} files, with a draft.txt and a stale build folder")
    print(f"  store   {place.store.name}, each commit synced to disk before it counts")
    print("  tools   safe: list_files read_file search   idempotent: write_file   never: delete_file delete_folder")
    title("1", "A process accepts the task and drives it:")
    first, seen = run_and_kill(place)
    second = subprocess.Popen(command(place, "second"))
    if second.wait(WAIT_S_MAX) != 0:
        raise SystemExit(f"the second process failed with exit code {second.returncode}")
    title("5", "Checked against the store and against the log of effects outside of it:")
    claims = asyncio.run(check(place, first, second.pid, seen))
    for claim, holds in claims:
        print(f"  {'ok    ' if holds else 'BROKEN'}  {claim}")
    broken = sum(not holds for _, holds in claims)
    print(f"\n{broken} of {len(claims)} claims are broken." if broken else "\nEvery claim holds.")
    return 1 if broken else 0


def make_project(project: Path) -> int:
    """A real folder to work on; gives the number of its files."""
    shutil.copytree(Path(agentlane.__file__).parent, project, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(project / "data", project / "build" / "lib")
    (project / "draft.txt").write_text("notes, to be thrown away\n")
    return sum(each.is_file() for each in project.rglob("*"))


def run_and_kill(place: Place) -> tuple[int, list[str]]:
    """Start the first process, wait until it says where it stands, kill it; its id, and what it said."""
    reading, writing = os.pipe()
    child = subprocess.Popen([*command(place, "first"), "--ready", str(writing)], pass_fds=[writing])
    os.close(writing)
    try:
        # The child writes one line when everything is in place. If it dies before, the pipe ends.
        readable, _, _ = select.select([reading], [], [], WAIT_S_MAX)
        said = os.read(reading, 4096) if readable else b""
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(reading)
    if not said:
        raise SystemExit("the first process did not come to the point where it was to be killed")
    if child.returncode != -signal.SIGKILL:
        raise SystemExit(f"the first process ended by itself, with exit code {child.returncode}")
    print(f"\n  kill -9 {child.pid}", flush=True)
    seen: list[str] = json.loads(said)
    return child.pid, seen


def command(place: Place, role: str) -> list[str]:
    return [sys.executable, __file__, "--role", role, "--folder", str(place.folder), "--store", place.store.suffix[1:]]


# Words.


def title(number: str, text: str) -> None:
    print(f"\n== {number}. {text}\n", flush=True)


def short(asked: ToolCallPart) -> str:
    """A call, by its first argument."""
    first: Any = next(iter((asked.arguments or {}).values()), "")
    return f"{asked.name}({first})"


def texts(content: Iterable[object]) -> str:
    return " ".join(part.text for part in content if isinstance(part, TextPart))


def shortened(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 4]} ..."


def tell(who: str, text: str) -> None:
    print(textwrap.fill(text, 100, initial_indent=f"  {who:<8}", subsequent_indent=" " * 12))


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent is killed in the middle of its work, and goes on.")
    parser.add_argument("--store", choices=["sqlite", "jsonl"], default="sqlite", help="what keeps the session")
    parser.add_argument("--keep", action="store_true", help="keep the folder, to look at the store afterwards")
    parser.add_argument("--role", choices=["first", "second"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ready", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="agentlane-demo-"))
    place = Place(folder, folder / f"work.{given.store}")
    if given.role == "first":
        asyncio.run(first_process(place, given.ready))
        return 0
    if given.role == "second":
        asyncio.run(second_process(place))
        return 0
    try:
        return run_demo(place)
    finally:
        if given.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
