"""Claim: who reads beside an owner sees whole moments of it, whatever it does, and leaves nothing of itself."""

from __future__ import annotations

import os
import re

import pytest

from tests.owners.processes import Refused, Stage

BESIDE = ["nothing", "compact", "delete", "optimize"]
LOOKS = 3
PASSED_OVER = r"sessions/[0-9a-f-]{36}\.jsonl\.lock"
"""What the owner had locked to make or remove a session when it was killed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "beside" in metafunc.fixturenames:
        asked = BESIDE if metafunc.config.getoption("--whole") else BESIDE[:2]
        cases = [
            (kind, each) for kind in ("jsonl", "sqlite") for each in asked if (kind, each) != ("jsonl", "optimize")
        ]
        metafunc.parametrize(("kind", "beside"), cases)


async def test_readers_beside_an_owner_see_whole_moments(stage: Stage, beside: str) -> None:
    """One opens again and again; one reads page by page what it opened; one is killed in the middle of it."""
    owner, watcher, holder, killed = stage.owner(), stage.process(), stage.process(), stage.process()
    owner.begin("work", beside=beside, name="o")
    owner.until("round")
    count = holder.do("hold")
    seen = holder.do("look")
    assert seen == [f"o-{number}" for number in range(count)]
    killed.begin("watch_for_ever")
    killed.until("watches")
    watcher.begin("watch", times=LOOKS)
    owner.until("round")
    assert holder.do("look") == seen
    killed.kill()
    counts = watcher.result()
    assert count <= counts[0] and counts == sorted(counts) and len(counts) == LOOKS
    owner.until("round")
    assert holder.do("look") == seen
    holder.do("close_reader")

    # Nothing is left of those who read, not in the way of the owner's upkeep either.
    owner.kill()
    last = stage.process()
    last.do("open")
    last.do("tidy")
    last.do("close")
    assert {name for name in stage.names() if not re.match(PASSED_OVER, name)} == plain(stage)
    await stage.judge(owner.wrote, owner.begun)


async def test_a_reader_of_a_session_that_is_deleted_is_told(stage: Stage) -> None:
    """Or has it still, as one whose file was removed does; never an empty or a half one, nor the next of that name."""
    owner, reader = stage.owner(), stage.process()
    labels = [f"{number}" for number in range(20)]
    for label in labels:
        owner.do("append", label=label)
    assert reader.do("hold") == len(labels)
    owner.do("close")
    owner.do("remove")
    owner.do("create", id="s")
    owner.do("open")
    owner.do("append", label="of another")
    if stage.kind == "sqlite":
        owner.do("compact")

    if stage.kind == "jsonl":
        assert reader.do("look") == labels
    else:
        with pytest.raises(Refused) as refused:
            reader.do("look")
        assert refused.value.code == "unknown_session"
    assert reader.do("read") == ["of another"]


async def test_readers_need_no_right_to_write(stage: Stage) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not write the folder")
    owner, reader = stage.owner(), stage.process()
    owner.do("append", label="a")
    owner.do("close")
    folder = stage.data.parent
    for each in (folder, *folder.parents[:-2]):
        each.chmod((each.stat().st_mode | 0o055) & ~0o022)
    stage.data.chmod(0o644)
    before = stage.names()

    reader.do("become_nobody")
    assert reader.do("read") == ["a"]
    with pytest.raises(Refused) as refused:
        reader.do("open")
    assert refused.value.code == "PermissionError"

    assert stage.names() == before
    if stage.kind == "jsonl":  # in a folder that cannot be written, SQLite's log cannot be read beside its owner
        owner.do("open")
        owner.do("append", label="b")
        assert reader.do("read") == ["a", "b"]


def plain(stage: Stage) -> set[str]:
    if stage.kind == "sqlite":
        return {"sessions.db", "sessions.db.lock"}
    return {"sessions", "sessions/s.jsonl", "sessions/s.jsonl.lock"}
