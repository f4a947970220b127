"""Claim: a forked child is refused whatever the parent has open, and neither its life nor its end changes anything."""

from __future__ import annotations

import hashlib

import pytest

from tests.owners.processes import Refused, Stage


@pytest.mark.parametrize("how", ["exit", "end", "multiprocessing"])
async def test_a_forked_child_is_refused_and_its_end_changes_nothing(stage: Stage, how: str) -> None:
    """``exit`` at once, or at the ``end`` of the program as the interpreter does it, what it has thrown away before."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    before, open_before = files(stage), owner.do("descriptors")

    *told, code = owner.do("fork", how=how)

    # In a JSONL store the child is a second owner like any other; SQLite cannot open that file in it at all.
    assert told == ["wrong_process", "wrong_process", {"jsonl": "session_owned", "sqlite": "wrong_process"}[stage.kind]]
    assert code == "0"
    assert files(stage) == before
    assert owner.do("descriptors") == open_before
    with pytest.raises(Refused) as refused:
        other.do("open")
    assert refused.value.code == stage.owned and refused.value.owner["pid"] == owner.pid
    wrote["b"] = owner.do("append", label="b")
    owner.do("close")
    assert [text for _, text in other.do("open")["log"]] == ["a", "b"]
    await stage.judge(wrote)


async def test_a_child_that_lives_on_keeps_nothing(stage: Stage) -> None:
    """The session is another's at once when the parent closes it, or is killed, while a child of it is there."""
    owner, second, third = stage.owner(), stage.process(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    owner.do("fork_and_leave")

    owner.do("close")
    second.do("open")
    wrote["b"] = second.do("append", label="b")
    stage.orphans.add(orphan := second.do("fork_and_leave"))
    second.kill()
    third.do("open")
    wrote["c"] = third.do("append", label="c")

    stage.end_orphan(orphan)
    owner.do("end_child")
    wrote["d"] = third.do("append", label="d")
    third.do("close")
    await stage.judge(wrote)


async def test_a_child_opens_for_itself_what_its_parent_had_closed(stage: Stage) -> None:
    owner = stage.owner()
    owner.do("append", label="a")
    owner.do("close")

    assert owner.do("fork_and_open") == ["a", "child"]

    assert [text for _, text in owner.do("open")["log"]] == ["a", "child"]


def files(stage: Stage) -> dict[str, tuple[int, int, str]]:
    """Every file at the place: which it is, how long, and what is in it, but for SQLite's index, which readers mark."""
    found = {}
    for name in sorted(stage.names()):
        path = stage.folder / name
        if path.is_file() and not name.endswith("-shm"):
            status = path.stat()
            found[name] = (status.st_ino, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found
