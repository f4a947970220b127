"""Claim: of eight processes that come to a store at one moment, each gets what it asked for or is told why not."""

from __future__ import annotations

import pytest

from tests.owners.processes import Process, Refused, Stage

EIGHT = 8


def at_once(stage: Stage, processes: list[Process], call: str, **arguments: object) -> list[object]:
    """Have all of them do it at one moment: what each gave, or was told."""
    with stage.barrier():
        for process in processes:
            process.do("ready")
            process.begin(call, **{key: value for key, value in arguments.items() if key != "ids"})
    answers: list[object] = []
    for process in processes:
        try:
            process.result()  # that it has passed the barrier
            answers.append(process.result())
        except Refused as refused:
            answers.append(refused)
    return answers


async def test_one_of_eight_makes_a_session(stage: Stage) -> None:
    """Where there is no folder or file yet: all the others are told that the session is there, or whose it is."""
    processes = [stage.process() for _ in range(EIGHT)]
    before = [process.do("descriptors") for process in processes]

    answers = at_once(stage, processes, "create", id="s")

    refused = [each for each in answers if isinstance(each, Refused)]
    assert len(refused) == EIGHT - 1
    for each in refused:
        assert each.code in ("invalid_write", stage.owned), each
        assert "exists already" in each.text or "open for writing by" in each.text
    assert [process.do("descriptors") for process in processes] == before
    assert stage.names() == names_of(stage, "s")
    await stage.judge({})


async def test_eight_make_a_session_each(stage: Stage) -> None:
    """In a JSONL store at once; in a SQLite file, which has one owner at a time, when those before are done."""
    left = {f"s{number}": stage.process() for number in range(EIGHT)}
    first = left["s0"]
    rounds = 0
    while left:
        with stage.barrier():
            for id, process in left.items():
                process.do("ready")
                process.begin("create", id=id)
        for id, process in list(left.items()):
            process.result()
            try:
                process.result()
                del left[id]
            except Refused as refused:
                if stage.kind == "jsonl" or refused.code != "store_owned":
                    raise
        rounds += 1
        assert rounds <= (1 if stage.kind == "jsonl" else EIGHT)

    assert stage.names() == names_of(stage, *(f"s{number}" for number in range(EIGHT)))
    for number in range(EIGHT):
        assert first.do("read", id=f"s{number}") == []


@pytest.mark.parametrize("id", ["s", None], ids=["that is there", "that is made"])
async def test_one_of_eight_owns_a_session(stage: Stage, id: str | None) -> None:
    processes = [stage.process() for _ in range(EIGHT)]
    if id is not None:
        processes[0].do("create", id=id)
    before = [process.do("descriptors") for process in processes]

    answers = at_once(stage, processes, "open", id=id, create=id is None)

    (owner,) = [number for number, each in enumerate(answers) if not isinstance(each, Refused)]
    for number, each in enumerate(answers):
        if isinstance(each, Refused):
            assert each.code == stage.owned, each
            if each.owner:
                assert each.owner["pid"] in [process.pid for process in processes] and each.owner["since"]
                assert f"by process {each.owner['pid']} on" in each.text
            assert "close it there, end that process, or open read-only" in each.text
            assert processes[number].do("descriptors") == before[number]
    wrote = {"a": processes[owner].do("append", label="a")}
    processes[owner].do("close")
    assert processes[owner].do("descriptors") == before[owner]
    if id is not None:
        assert stage.names() == names_of(stage, "s")
        await stage.judge(wrote)
    successor = processes[owner - 1]
    assert successor.do("open", id=id)["log"] == [[wrote["a"], "a"]]


def names_of(stage: Stage, *ids: str) -> set[str]:
    if stage.kind == "sqlite":
        return {"sessions.db", "sessions.db.lock"}
    return {"sessions", *(f"sessions/{id}.jsonl" for id in ids), *(f"sessions/{id}.jsonl.lock" for id in ids)}
