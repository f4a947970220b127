"""Claim: an export that is killed leaves no file of that name, or a whole one, and the next to that name clears up."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlane.errors import InvalidWrite
from agentlane.storage import exchange
from tests.session.copies import speaker
from tests.session.places import Place
from tests.storage.test_jsonl_cleanup import Imaged


async def test_killed_at_each_call_of_the_file_system(
    memory: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk as it is before each call that changes it, and after half of each write: what a death there leaves."""
    session = await memory.open()
    lane = await session.lane("main", speaker())
    for _ in range(300):
        await lane.append_custom("note", "x" * 1_000)
    folder = tmp_path / "out"
    await session.export(folder / "whole")
    whole = (folder / "whole").read_bytes()
    (folder / "whole").unlink()

    files = Imaged(folder, tmp_path / "images")
    monkeypatch.setattr(exchange, "FileSystem", lambda: files)
    files.on = True
    await session.export(folder / "file")
    files.on = False
    calls = [call for call, _ in files.taken]
    assert calls.count("half a write") > 1 and {"sync", "rename", "renamed", "sync_folder"} <= set(calls)

    left: set[str] = set()
    there: list[bool] = []
    for call, image in files.taken:
        path = image / "file"
        left |= {each.name for each in image.iterdir()}
        there.append(path.exists())
        if path.exists():
            assert path.read_bytes() == whole, f"half a file after a death at {call}"
            with pytest.raises(InvalidWrite):
                await session.export(path)
        else:
            await session.export(path)
        assert [each.name for each in image.iterdir()] == ["file"], f"left after a death at {call}"
        assert path.read_bytes() == whole
    assert left == {".file.new", "file.lock", "file"} and there == sorted(there) and set(there) == {True, False}
