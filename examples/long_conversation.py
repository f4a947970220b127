"""A run that outgrows its model's window several times, and whose process is killed while a summary is written.

    python examples/long_conversation.py

The agent reads a book of 24 pages with a model whose window holds a few of them, so what it shows is summarized again
and again. A child process works until its second summary is half way, and is killed there with SIGKILL. This process
opens the store and goes on. Then the claims are checked, by the store and by a log of requests and calls that is kept
outside of it. The exit code is 1 if one of them does not hold. The model is a script: nothing outside is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from agentlane import (
    Agent,
    AssistantMessage,
    Compaction,
    Message,
    ModelLimits,
    ModelRequest,
    Prompt,
    Settled,
    StreamItem,
    ToolResultMessage,
    UserMessage,
    open_session,
    tool,
)
from agentlane.testing import ScriptedModel, call, hang
from agentlane.testing.script import ScriptAnswer

PAGES = 24
WINDOW = 3_000
KILLED_IN = 2
"""In which of its summaries the first process dies."""
OPERATION = "read-1"
MARKS = [f"m{page:02}-{page * 7919 % 1000:03}" for page in range(1, PAGES + 1)]
WAIT_S_MAX = 60


def count(message: Message) -> int:
    """Tokens of a message. This script's model has four characters in each, and eight tokens around a message."""
    return 8 + sum(len(getattr(part, "text", "") or repr(part)) // 4 for part in message.content)


class Log:
    """What happened outside of the store, a line each: calls that ran, and requests as the model got them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **what: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.path.read_text().splitlines()) if line["kind"] == kind]


class Reader(ScriptedModel):
    """The script. It tells of each request, and of each summary it is asked for makes a list of the marks."""

    def __init__(self, log: Log, *, hangs_in: int | None = None) -> None:
        answers = [[call("read_page", page=page)] for page in range(1, PAGES + 1)]
        limits = ModelLimits(context_tokens=WINDOW)
        super().__init__([*answers, "These are all of them."], summaries=self.summary, limits=limits)
        self.log = log
        self.hangs_in = hangs_in
        self.summaries_asked = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        tokens, text = sum(map(count, request.messages)), repr(request.messages)
        marks = sum(mark in text for mark in MARKS)
        digest = sha256(text.encode()).hexdigest()
        self.log.add(kind=request.purpose, tokens=tokens, marks=marks, digest=digest)
        told = f"{len(request.messages):>2} messages, {tokens:>4} tokens, {marks:>2} marks"
        print(f"  {request.purpose:<8} {told}", flush=True)
        return super().stream(request)

    def summary(self, request: ModelRequest) -> ScriptAnswer:
        self.summaries_asked += 1
        if self.summaries_asked == self.hangs_in:
            return hang("Marks so ")
        text = repr(request.messages)
        return "Marks so far: " + ", ".join(mark for mark in MARKS if mark in text)


def make_agent(model: Reader) -> Agent:
    """The agent, the same in each process."""

    @tool(replay="never")
    async def read_page(page: int) -> str:
        """Read one page of the book."""
        model.log.add(kind="call", page=page)
        return f"Page {page} has the mark {MARKS[page - 1]}. " + "The lighthouse stands on a northern cape. " * 30

    return Agent("reader", model=model, tools=[read_page], token_counter=count)


async def work(folder: Path, *, hangs_in: int | None = None) -> Settled | None:
    """Accept, or find what is accepted, and drive. With ``hangs_in`` it never comes back from that summary."""
    model = Reader(Log(folder / "log.jsonl"), hangs_in=hangs_in)
    async with open_session(folder / "book.db") as session:
        lane = await session.lane("main", make_agent(model))
        if (found := lane.inspect().operation) is not None:
            print(f"  found    {found.operation_id} at {found.at!r}, for the reason {found.summarizing!r}")
        await lane.accept(Prompt("List the marks of all pages."), operation_id=OPERATION)
        driving = asyncio.create_task(lane.drive(OPERATION))
        if hangs_in is not None:
            await model.hanging()
            print("half way", flush=True)
        outcome = await driving
        return outcome if isinstance(outcome, Settled) else None


def run_and_kill(folder: Path) -> None:
    """Have a child work until its summary is half way, and kill it there."""
    command = [sys.executable, __file__, str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    half_way = False
    try:
        for line in child.stdout:
            half_way = line == "half way\n"
            if half_way:
                break
            print(line, end="")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_S_MAX)
        child.stdout.close()
    if not half_way:
        raise SystemExit(f"the first process did not come to its summary number {KILLED_IN}")
    print(f"  kill -9 {child.pid}: the summary is half way", flush=True)


class Claim(NamedTuple):
    text: str
    holds: bool


async def check(folder: Path) -> list[Claim]:
    """What is claimed, by the store and by the log."""
    log = Log(folder / "log.jsonl")
    async with open_session(folder / "book.db", create=False, read_only=True) as session:
        path = [entry.body for entry in await session.branch("main").entries(newest_first=False)]
        rows = [element.row for element in await session.usage()]
        (operation,) = await session.operations()
        damage = (await session.verify()).findings
        stats = session.stats()
    made = [body for body in path if isinstance(body, Compaction)]
    said = [type(body) for body in path if not isinstance(body, Compaction)]
    results = [body.text for body in path if isinstance(body, ToolResultMessage)]
    answers, summaries = log.lines("answer"), log.lines("summary")
    lost = [row for row in rows if row.kind == "summary" and row.usage.input_tokens is None]
    result = operation.result
    return [
        Claim("the run is completed", result is not None and result.status == "completed"),
        Claim(f"what it showed was summarized {len(made)} times", len(made) >= 3),
        Claim(
            "the whole conversation is in the store, in order: no message is lost or there twice",
            said == [UserMessage, *[AssistantMessage, ToolResultMessage] * PAGES, AssistantMessage]
            and [mark in text for mark, text in zip(MARKS, results, strict=True)] == [True] * PAGES,
        ),
        Claim("each call ran once", [line["page"] for line in log.lines("call")] == list(range(1, PAGES + 1))),
        Claim(
            f"each request left a quarter of the window of {WINDOW} tokens free",
            max(line["tokens"] for line in answers + summaries) <= WINDOW * 3 // 4,
        ),
        Claim(
            "each request showed every mark that was read by then, in a page or through the summaries",
            [line["marks"] for line in answers] == list(range(PAGES + 1)),
        ),
        Claim(
            "after the kill the same summary was asked for again",
            [line["digest"] for line in summaries].count(summaries[KILLED_IN - 1]["digest"]) == 2,
        ),
        Claim(
            "each attempt at a summary is charged, the one of the dead process as unknown",
            [row.kind for row in rows].count("summary") == len(made) + 1 == len(summaries) and len(lost) == 1,
        ),
        Claim(
            "the run's usage is that of all its requests",
            result is not None and result.usage == stats.usage and result.usage.rows == len(answers) + len(summaries),
        ),
        Claim("nothing is wrong with what is stored", not damage),
    ]


def main() -> int:
    if len(sys.argv) > 1:  # the child
        asyncio.run(work(Path(sys.argv[1]), hangs_in=KILLED_IN))
        return 1
    with tempfile.TemporaryDirectory(prefix="agentlane-long-") as name:
        folder = Path(name)
        print(f"A process reads {PAGES} pages with a window of {WINDOW} tokens:", flush=True)
        run_and_kill(folder)
        print(f"Another one ({os.getpid()}) opens the store and goes on:", flush=True)
        asyncio.run(work(folder))
        claims = asyncio.run(check(folder))
    print("Checked against the store and the log:")
    for claim in claims:
        print(f"  {'ok' if claim.holds else 'BROKEN':<8} {claim.text}")
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
