"""Claim: an owner whose files are no longer what they were stops at its next commit, and says what is where.

What it had been told is whole in the file that it wrote, and nothing of it is in one that has its place.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentlane import OwnershipLost, open_session
from agentlane.data.writes import SetValue
from tests.owners.actor import LAST, store_at
from tests.owners.processes import Process, Refused, Stage

HARMS = ["removed", "replaced", "replaced by a link", "a second name", "folder renamed"]
"""What is done to the data file."""
TEXTS = {"a second name": "was given a second name", "sqlite": "removed or replaced", "jsonl": "open"}


async def lost(owner: Process, text: str) -> None:
    """The next commit of the owner is refused, for that reason, and so is each one behind it."""
    with pytest.raises(Refused) as refused:
        owner.do("append", label="lost")
    assert refused.value.code == "ownership_lost", refused.value
    assert text in refused.value.text
    with pytest.raises(Refused) as refused:
        owner.do("append", label="lost too")
    assert (refused.value.code, refused.value.cause) == ("session_faulted", "ownership_lost")


@pytest.mark.parametrize("harm", HARMS)
async def test_an_owner_whose_file_is_another_stops_and_goes_on_when_it_is_back(stage: Stage, harm: str) -> None:
    owner = stage.owner()
    wrote = {"a": owner.do("append", label="a"), "b": owner.do("append", label="b")}
    data, away = stage.data, stage.data.with_name("away")
    match harm:
        case "removed":
            os.link(data, away)  # so that it can be put back
            data.unlink()
        case "replaced":
            data.rename(away)
            shutil.copyfile(away, data)
        case "replaced by a link":
            data.rename(away)
            data.symlink_to(away)
        case "a second name":
            os.link(data, away)
        case _:
            stage.folder.rename(stage.folder.with_name("elsewhere"))

    stays = (harm, stage.kind) == ("replaced by a link", "sqlite")  # there a link is the file that it names
    if not stays:
        await lost(owner, TEXTS.get(harm, TEXTS[stage.kind]))

    match harm:
        case "removed" | "replaced" | "replaced by a link":
            away.replace(data)
        case "a second name":
            away.unlink()
        case _:
            stage.folder.with_name("elsewhere").rename(stage.folder)
    if not stays:
        assert owner.do("reopen") == list(wrote)
    wrote["c"] = owner.do("append", label="c")
    owner.do("close")
    await stage.judge(wrote)


@pytest.mark.parametrize(
    ("what", "then"), [("folder", "commits"), ("folder", "closes"), ("file", "closes"), ("file", "dies")]
)
async def test_an_owner_whose_place_is_taken_harms_nobody(stage: Stage, what: str, then: str) -> None:
    """Another store is made where its own was: neither its commits, nor its close, nor its death reach that one."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    away = stage.folder.with_name("away")
    if what == "folder":
        stage.folder.rename(away)
        stage.folder.mkdir()
    else:
        away.mkdir()
        for each in list(stage.data.parent.iterdir()):
            if each.name.startswith(stage.data.name):
                each.rename(away / each.name)
    (stage.folder / "witness").unlink(missing_ok=True)
    new = stage.process()
    new.do("create", id="s")
    new.do("open")
    theirs = {"x": new.do("append", label="x")}

    if then == "commits":
        await lost(owner, "removed or replaced" if stage.kind == "sqlite" or what == "file" else "")
    if then == "dies":
        owner.kill()
    else:
        owner.do("close")

    theirs["y"] = new.do("append", label="y")
    new.kill()
    await stage.judge(theirs)
    other.kill()
    await judge_at(stage, away, wrote)


async def judge_at(stage: Stage, folder: Path, wrote: dict[str, int]) -> None:
    """The same for a session whose files were moved."""
    if stage.kind == "jsonl":
        stage.place = folder / "sessions" if (folder / "sessions").is_dir() else folder
    else:
        stage.place = folder / stage.place.name
    await stage.judge(wrote)


@pytest.mark.parametrize("harm", ["removed", "replaced"])
async def test_an_owner_whose_lock_is_taken_away_stops(stage: Stage, harm: str) -> None:
    """Also where the one who has the new lock did not write yet."""
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    stage.lock.rename(stage.lock.with_name("away"))
    if harm == "replaced":
        shutil.copyfile(stage.lock.with_name("away"), stage.lock)
    if harm == "removed":
        stage.lock.with_name("away").unlink()
    (stage.folder / "witness").unlink()  # there are two owners now, and that is what is tested
    other = stage.process()
    assert other.do("open")["log"] == [[wrote["a"], "a"]]

    await lost(owner, "the lock file")

    wrote["b"] = other.do("append", label="b")
    with pytest.raises(Refused) as refused:
        owner.do("reopen")
    assert refused.value.code == stage.owned and refused.value.owner["pid"] == other.pid
    owner.do("close")
    wrote["c"] = other.do("append", label="c")
    other.do("close")
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    ("suffix", "harm", "then"),
    [
        ("-wal", "removed", "commits"),
        ("-wal", "replaced", "commits"),
        ("-wal", "removed", "creates"),
        ("-wal", "removed", "cleans up"),
        ("-wal", "removed", "closes"),
        ("-shm", "removed", "commits"),
        ("-shm", "replaced", "commits"),
        ("-shm", "removed", "closes"),
    ],
)
async def test_a_log_without_a_name_takes_no_commit_and_loses_none(
    stage: Stage, suffix: str, harm: str, then: str
) -> None:
    """SQLite would go on with it, and it would be gone with the process."""
    owner = stage.owner()
    wrote = {"a": owner.do("append", label="a"), "b": owner.do("append", label="b")}
    path = stage.beside(suffix)
    path.unlink()
    if harm == "replaced":
        path.touch()

    if then == "commits":
        await lost(
            owner, "All that was committed has been copied" if suffix == "-wal" else "Nothing that was committed"
        )
        # Who is killed now has lost nothing.
        owner.kill()
    elif then == "closes":
        owner.do("close")
    else:
        with pytest.raises(Refused) as refused:
            owner.do("create", id="other") if then == "creates" else owner.do("compact")
        assert refused.value.code == "ownership_lost"
        owner.do("close")
    assert stage.names() == {"sessions.db", "sessions.db.lock"} or then == "commits"
    successor = stage.process()
    assert successor.do("open")["log"] == [[seq, label] for label, seq in wrote.items()]
    wrote["c"] = successor.do("append", label="c")
    successor.do("close")
    await stage.judge(wrote)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("hindered", ["by a reader", "by another log"])
async def test_what_cannot_be_copied_into_the_database_is_saved_beside_it(stage: Stage, hindered: str) -> None:
    owner, other = stage.owner(), stage.process()
    wrote = {"a": owner.do("append", label="a")}
    if hindered == "by a reader":  # what it has seen must stay as it is
        other.do("transaction", path=str(stage.data), texts=["BEGIN", "SELECT count(*) FROM element"])
    wrote["b"] = owner.do("append", label="b")
    stage.beside("-wal").unlink()
    if hindered == "by another log":
        stage.beside("-wal").write_bytes(b"theirs")

    await lost(owner, f"a whole copy, as this owner saw it, is {stage.data}.saved-1")

    owner.kill()
    stage.place = stage.beside(".saved-1")
    assert stage.place.stat().st_mode & 0o777 == 0o600
    await stage.judge(wrote)


async def test_an_older_copy_that_is_put_in_its_place_is_not_written_to(stage: Stage) -> None:
    owner, reader = stage.owner(), stage.process()
    old = {"a": owner.do("append", label="a")}
    owner.do("close")
    copy = stage.data.with_name("copy")
    shutil.copyfile(stage.data, copy)
    owner.do("open")
    owner.do("append", label="b")
    copy.replace(stage.data)

    await lost(owner, "removed or replaced" if stage.kind == "sqlite" else "is another file now")

    owner.kill()
    if stage.kind == "sqlite":
        stage.beside("-wal").unlink()  # of the file that was replaced: as anyone who restores a copy must
        stage.beside("-shm").unlink()
    assert reader.do("read") == ["a"]
    await stage.judge(old)


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_new_owner_does_not_build_over_a_commit_that_it_did_not_see(stage: Stage) -> None:
    """The old one had looked at its lock, and committed, when that was taken away and the new one had read."""
    new = stage.process()
    new.do("create", id="s")
    seen: list[dict[str, Any]] = []

    class Taken:
        def reached(self, boundary: str) -> None:
            if boundary == "commit.value.inside" and not seen:
                stage.lock.unlink()
                seen.append(new.do("open"))

    store = store_at(stage.kind, str(stage.place))
    old = await store.open("s", probe=Taken())
    await old.submit([SetValue(LAST.address, b'"older"')], name="first")  # from here on the epoch is its own
    await old.submit([SetValue(LAST.address, b'"old"')], name="value")
    assert [each["log"] for each in seen] == [[]]

    with pytest.raises(Refused) as refused:
        new.do("append", label="a")
    assert refused.value.code == "ownership_lost"
    assert "another owner has written since this one opened it" in refused.value.text
    assert new.do("reopen") == []
    wrote = {"a": new.do("append", label="a")}
    with pytest.raises(OwnershipLost):
        await old.submit([SetValue(LAST.address, b'"lost"')], name="value")
    await store.close()
    assert await old_value(stage) == "a"
    await stage.judge(wrote)


async def old_value(stage: Stage) -> str | None:
    async with open_session(store_at(stage.kind, str(stage.place)), session_id="s", read_only=True) as session:
        return await session.value(LAST)
