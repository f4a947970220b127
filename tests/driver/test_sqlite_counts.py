"""Counts of a run on SQLite that do not vary: transactions, hops to the database's threads, and SQL statements."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, open_session, tool
from agentlane.storage.sqlite_thread import DatabaseThread
from agentlane.testing import ScriptedModel, call, say

CALLS = 8


@tool(replay="safe")
async def read_file(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


async def test_a_run_takes_five_hops_and_transactions_and_the_same_statements_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read, each commit is one hop, and the thirtieth run costs what the second does."""
    hops: Counter[int] = Counter()
    post = DatabaseThread.post

    def counted(thread: DatabaseThread, function: Any) -> bool:
        hops[id(thread)] += 1
        return post(thread, function)

    monkeypatch.setattr(DatabaseThread, "post", counted)
    turn = [[say("looking"), *(call("read_file", path=f"{i}.txt") for i in range(CALLS))], "done"]
    model = ScriptedModel(turns=[turn] * 30)
    async with open_session(tmp_path / "s.db", durability="process") as session:
        lane = await session.lane("main", Agent(model=model, tools=[read_file]))
        await lane.run("the first one reads the lane")
        storage: Any = session._runtime.storage
        writer = storage._use.writer
        statements: list[str] = []
        await writer.thread.call(lambda database: database.set_trace_callback(statements.append))
        costs = []
        for _ in range(29):
            hops.clear()
            statements.clear()
            before = writer.transactions
            await lane.run("read them")
            kinds = Counter(each.split()[0] for each in statements)
            costs.append((dict(hops), writer.transactions - before, dict(kinds)))
        await writer.thread.call(lambda database: database.set_trace_callback(None))

    assert costs == [costs[0]] * 29
    hops_of_a_run, transactions, kinds = costs[0]
    assert hops_of_a_run == {id(writer.thread): 5}
    assert transactions == 5
    assert kinds["BEGIN"] == kinds["COMMIT"] == 5
    assert kinds["UPDATE"] == 5  # the epoch's guard and the high-water mark, once for each
    assert "SELECT" not in kinds
