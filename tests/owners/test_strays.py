"""Claim: other programs, and the owner's own stray opens, take neither the ownership nor a commit that was reported."""

from __future__ import annotations

import os

import pytest

from tests.owners.processes import Refused, Stage

SUFFIXES = {"jsonl": ["", ".lock"], "sqlite": ["", ".lock", "-wal", "-shm"]}


async def test_a_stray_open_in_the_owners_process_lets_nobody_else_in(stage: Stage) -> None:
    """It drops the locks that SQLite holds; ours is not of that kind."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    for number, suffix in enumerate(SUFFIXES[stage.kind]):
        owner.do("stray", path=str(stage.beside(suffix)))
        for call in ("open", "remove"):
            with pytest.raises(Refused) as refused:
                other.do(call)
            assert refused.value.code == stage.owned and refused.value.owner["pid"] == owner.pid
        wrote[str(number)] = owner.do("append", label=str(number))
    assert other.do("read") == list(wrote)
    owner.kill()
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("then", ["commits", "closes"])
async def test_a_log_that_is_taken_away_behind_a_stray_open_is_noticed_and_saved(stage: Stage, then: str) -> None:
    """Nothing keeps another program, when it closes, from copying the log and removing it: it believes to be alone."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    owner.do("stray", path=str(stage.data))
    other.do("statements", path=str(stage.data), texts=["SELECT count(*) FROM element"])
    assert not stage.beside("-wal").exists()

    if then == "commits":
        with pytest.raises(Refused) as refused:
            owner.do("append", label="b")
        assert refused.value.code == "ownership_lost"
        assert "All that was committed has been copied into the database" in refused.value.text
        assert owner.do("reopen") == ["a"]
        wrote["c"] = owner.do("append", label="c")
    owner.do("close")
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("ending", ["closes", "dies"])
async def test_another_program_that_reads_holds_up_nobody(stage: Stage, ending: str) -> None:
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    other.do("transaction", path=str(stage.data), texts=["BEGIN", "SELECT count(*) FROM element"])

    wrote["b"] = owner.do("append", label="b")
    owner.do("close")  # the log stays, for the other one reads it
    assert stage.beside("-wal").exists()
    assert owner.do("open")["log"] == [[seq, label] for label, seq in wrote.items()]
    wrote["c"] = owner.do("append", label="c")
    if ending == "closes":
        other.do("end_transaction")
    else:
        other.kill()
    owner.do("close")
    assert not stage.beside("-wal").exists()
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_another_program_that_writes_is_waited_for_or_told_of(stage: Stage) -> None:
    """R73: what it did is not ours to undo, and what we were told is there."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    other.do("transaction", path=str(stage.data), texts=["BEGIN IMMEDIATE", "CREATE TABLE theirs (x)"])
    with pytest.raises(Refused) as refused:
        owner.do("append", label="b")
    assert refused.value.code == "store_busy"
    other.kill()

    wrote["c"] = owner.do("append", label="c")
    other = stage.process()
    other.do("statements", path=str(stage.data), texts=["PRAGMA wal_checkpoint(TRUNCATE)"])
    assert stage.beside("-wal").stat().st_size == 0
    wrote["d"] = owner.do("append", label="d")
    owner.kill()
    await stage.judge(wrote)


@pytest.mark.parametrize(
    ("alias", "here"), [("folder", "one process"), ("file", "two processes"), ("relative", "two processes")]
)
async def test_a_session_has_one_owner_by_whatever_path(stage: Stage, alias: str, here: str) -> None:
    owner = stage.owner()
    wrote = {"a": owner.do("append", label="a")}
    if alias == "relative":
        path = stage.folder / ".." / stage.folder.name / stage.place.name
    elif alias == "folder":
        (stage.folder.parent / "alias").symlink_to(stage.folder)
        path = stage.folder.parent / "alias" / stage.place.name
    else:
        path = stage.folder.parent / f"alias{stage.place.suffix}"
        path.symlink_to(stage.place)
    second = owner if here == "one process" else stage.process()

    with pytest.raises(Refused) as refused:
        second.do("open", place=str(path))

    same = here == "one process"
    assert refused.value.code == ("session_owned" if same else stage.owned)
    if not same or stage.kind == "jsonl":
        assert refused.value.owner["pid"] == owner.pid
    assert ("in this same process" if same and stage.kind == "jsonl" else "") in refused.value.text
    wrote["b"] = owner.do("append", label="b")
    owner.do("close")
    assert second.do("open", place=str(path))["log"] == [[seq, label] for label, seq in wrote.items()]
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["jsonl"])
async def test_a_file_with_two_names_has_no_owner_by_either(stage: Stage) -> None:
    """By each name it would have another lock. Who reads only may; in SQLite the log would be another one too."""
    owner = stage.owner()
    wrote = {"a": owner.do("append", label="a")}
    owner.do("close")
    other = stage.folder / "other"
    other.mkdir()
    os.link(stage.data, other / "s.jsonl")

    for place in (stage.place, other):
        with pytest.raises(Refused) as refused:
            owner.do("open", place=str(place))
        assert refused.value.code == "unsupported_format"
        assert "the file has 2 names" in refused.value.text
    assert owner.do("read") == ["a"]

    (other / "s.jsonl").unlink()
    assert owner.do("open")["log"] == [[wrote["a"], "a"]]
