"""Claim: what the page says about losing data is so, today: each thing that can be tried is tried."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, Prompt, Settled, ToolContext, open_session, tool
from agentlane.errors import CorruptSession, InvalidMessage, UnknownOperation, UnsupportedFormat
from agentlane.storage import JsonlStore, SqliteStore
from agentlane.testing import ScriptedModel, call
from tests.cases.test_table import functions_in
from tests.docs.pages import ROOT
from tests.session.places import KINDS, Place

PAGE = ROOT / "docs" / "explanation" / "how-to-lose-data.md"
HERE = "tests/docs/test_losing_data.py"
OUTSIDE = "in the world outside of the library, where no test of ours can look"
RECOVERY = "tests/crash/test_recovery.py"

CLAIMS: dict[str, str | tuple[str, ...]] = {
    "Declare a tool `safe` that is not.": (
        f"{RECOVERY}::test_a_call_runs_again_only_if_it_was_and_is_declared_repeatable",
    ),
    "Declare `idempotent` and not hand on the key.": OUTSIDE,
    "Have a receiver that forgets keys sooner than you resume.": OUTSIDE,
    "Do part of the work after the tool returned.": OUTSIDE,
    "Do the work outside of tools.": ("tests/session/test_life.py::test_an_instructions_function_is_an_effect",),
    "Accept without an `operation_id` and try again.": (f"{RECOVERY}::test_equal_operations_are_two_operations",),
    "Use one id for two different prompts.": (
        "tests/session/test_operations.py::test_an_id_that_was_used_for_something_else_is_a_conflict",
    ),
    "Send an id again after its record was dropped.": (f"{HERE}::test_an_id_whose_record_was_dropped_is_new_work",),
    '`MemoryStore`, or `":memory:"`.': ("tests/session/test_opening.py::test_each_memory_is_its_own",),
    '`durability="process"`, and a power cut.': (
        "tests/storage/test_jsonl.py::test_process_durability_never_syncs_and_reports_inside_submit",
    ),
    "A disk or a virtual machine that reports a sync before it is one.": OUTSIDE,
    "A network file system.": (
        "tests/storage/test_sqlite_file.py::test_a_network_mount_is_refused",
        "tests/cases/test_storage.py::test_a_file_system_without_locks_is_told_with_the_way_out",
    ),
    "A disk that returns other bytes than were written.": (
        "tests/storage/test_jsonl.py::test_a_flipped_byte_is_detected_wherever_it_is",
        "tests/storage/test_sqlite_bytes.py::test_a_flipped_byte_is_refused_or_harmless_as_far_as_sqlite_reads",
    ),
    "Copy a SQLite file while it is in use.": (
        "tests/storage/test_sqlite_bytes.py::test_without_its_log_a_database_is_as_it_was_when_that_was_begun",
        "tests/session/test_backups.py",
    ),
    "Delete `-wal` after a crash.": (
        "tests/storage/test_sqlite_bytes.py::test_without_its_log_a_database_is_as_it_was_when_that_was_begun",
        "tests/storage/test_sqlite_bytes.py::"
        "test_a_killed_owners_files_are_whole_with_and_without_the_index_of_the_log",
    ),
    "Delete or replace `-wal` while the store is open.": (
        "tests/owners/test_moved.py::test_a_log_without_a_name_takes_no_commit_and_loses_none",
        "tests/owners/test_moved.py::test_what_cannot_be_copied_into_the_database_is_saved_beside_it",
    ),
    "Put the `-wal` of another database beside yours.": (
        "tests/storage/test_sqlite_bytes.py::test_a_log_of_another_database_is_met_by_the_session_that_is_opened",
    ),
    "Open the database file in the owner's process by other means.": (
        "tests/owners/test_strays.py::test_a_stray_open_in_the_owners_process_lets_nobody_else_in",
        "tests/owners/test_strays.py::test_a_log_that_is_taken_away_behind_a_stray_open_is_noticed_and_saved",
    ),
    "Delete the `.lock` file while a session is open.": (
        "tests/storage/test_lock.py::test_a_lock_file_that_is_removed_or_replaced_is_ownership_lost",
        "tests/owners/test_moved.py::test_an_owner_whose_lock_is_taken_away_stops",
    ),
    "Move the file, or its folder, while it is open.": (
        "tests/owners/test_moved.py::test_an_owner_whose_file_is_another_stops_and_goes_on_when_it_is_back",
        "tests/owners/test_moved.py::test_an_owner_whose_place_is_taken_harms_nobody",
    ),
    "Edit a JSONL file by hand.": (f"{HERE}::test_an_edited_file_is_refused_until_it_is_as_it_was",),
    "Delete, damage or mix up `.jsonl.index` files.": (
        "tests/storage/test_jsonl_index.py::test_whatever_is_wrong_with_the_index_the_session_opens_without_it",
        "tests/storage/test_jsonl_index.py::test_an_index_of_something_else_is_not_taken",
    ),
    "Keep a second name (a hard link) of a file as its copy.": (
        f"{HERE}::test_a_copy_of_a_file_is_a_first_part",
        "tests/owners/test_moved.py::test_an_owner_whose_file_is_another_stops_and_goes_on_when_it_is_back",
        "tests/owners/test_strays.py::test_a_file_with_two_names_has_no_owner_by_either",
    ),
    "Restore an older copy.": (f"{HERE}::test_an_older_copy_starts_again_what_it_does_not_know",),
    "Drive a backup beside the session that it was made of.": (
        f"{HERE}::test_a_backup_goes_on_with_the_same_work_under_the_same_keys",
    ),
    "Take a fork, or a branch as Markdown, for a backup.": (
        "tests/session/test_forking.py::test_a_fork_is_the_same_from_and_to_every_store",
    ),
    "Believe that half of an export is one.": (f"{HERE}::test_half_of_an_export_is_refused",),
    "`os.fork()` with a session open.": (
        "tests/storage/test_jsonl.py::test_a_forked_child_is_refused_and_harms_nothing",
        "tests/owners/test_forks.py::test_a_forked_child_is_refused_and_its_end_changes_nothing",
    ),
    "Two machines on one shared folder.": OUTSIDE,
    "Write to the SQLite file with a `sqlite3` shell beside a live owner,": (
        "tests/storage/test_sqlite_commits.py::test_a_lock_held_for_too_long_is_busy_and_changes_nothing",
    ),
    "Let the disk run full during a cleanup.": (
        "tests/storage/test_jsonl_cleanup.py::test_each_call_that_fails_leaves_it_whole",
    ),
    "Delete a session.": (f"{HERE}::test_a_deleted_session_leaves_its_forks_and_a_free_id",),
    "An older version of agentlane on newer data.": (
        "tests/storage/test_jsonl.py::test_a_newer_format_is_its_own_error",
        "tests/storage/test_sqlite_file.py::test_what_is_not_ours_is_told_apart_and_left_alone",
    ),
    "Swallow `SessionFaulted`.": (
        "tests/storage/test_jsonl.py::test_a_full_disk_faults_and_leaves_the_last_good_size",
        "tests/storage/test_sqlite_commits.py::test_a_full_disk_faults_every_session_and_the_file_opens_again",
    ),
}
"""What the page says, in its order, and the tests of it; or why there is none."""


def test_each_claim_of_the_page_has_its_tests() -> None:
    said = [
        " ".join(each.split()) for each in re.findall(r"^- \*\*(.*?)\*\*", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert said == list(CLAIMS)
    tests = [test for found in CLAIMS.values() if isinstance(found, tuple) for test in found]
    assert [
        test for test in tests if "::" in test and test.split("::")[1] not in functions_in(test.split("::")[0])
    ] == []
    assert all((ROOT / test.split("::")[0]).is_file() for test in tests)


class Payments:
    """An agent whose tool must not run twice; it holds on while ``gate`` is closed."""

    def __init__(self, replay: Any = "never", gate: asyncio.Event | None = None) -> None:
        self.keys: list[str] = []
        self.began = asyncio.Event()

        @tool(replay=replay)
        async def pay(ctx: ToolContext) -> str:
            """Pay, once."""
            self.keys.append(ctx.idempotency_key)
            self.began.set()
            if gate is not None:
                await gate.wait()
            return "paid"

        self.agent = Agent(model=ScriptedModel([[call("pay")], "done"]), tools=[pay])


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


async def test_an_id_whose_record_was_dropped_is_new_work(place: Place) -> None:
    payments = Payments()
    session = await place.open()
    lane = await session.lane("main", payments.agent)
    for _ in range(2):
        await lane.run("pay", operation_id="op")
    assert len(payments.keys) == 1
    await session.drop_results(before=place.clock.now_ms() + 1)
    with pytest.raises(UnknownOperation):
        await lane.result("op")
    other = Payments()
    lane = await session.lane("other", other.agent)
    await lane.run("pay", operation_id="op")
    assert len(other.keys) == 1, "it ran again"
    await place.end()


async def test_an_edited_file_is_refused_until_it_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    async with open_session(path) as session:
        branch = await session.create_branch("main")
        for number in range(4):
            await branch.append_custom("note", {"n": number})
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"n":1}', b'{"n":7}'))
    with pytest.raises(CorruptSession):
        await open_session(path)
    path.write_bytes(whole)
    await (await open_session(path)).close()

    path.write_bytes(whole.replace(b'{"n":3}', b'{"n":9}'))
    async with open_session(path) as session:
        assert len(await session.entries()) == 3 and "no whole commit" in str(session.findings)
        await session.set_name("go on")
    assert b'{"n":9}' in (tmp_path / "s.jsonl.torn-1").read_bytes()


async def test_a_copy_of_a_file_is_a_first_part(tmp_path: Path) -> None:
    live, copies = tmp_path / "live", tmp_path / "copies"
    copies.mkdir()
    store = JsonlStore(live, compact_share=None)
    await store.create("s")
    async with open_session(store, session_id="s") as session:
        branch = await session.create_branch("main")
        for number in range(12):
            await branch.append_custom("note", {"n": number})
            if number == 6:
                await session.compact_storage()
            shutil.copy(live / "s.jsonl", copies / "s.jsonl")
            async with open_session(JsonlStore(copies), session_id="s") as copy:
                assert [each.body.data["n"] for each in await copy.entries()] == list(range(number + 1))  # type: ignore[union-attr]
    await store.close()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_an_older_copy_starts_again_what_it_does_not_know(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("s.jsonl" if kind == "jsonl" else "s.db")
    old = tmp_path / "old"
    payments = Payments()
    async with open_session(path) as session:
        lane = await session.lane("main", payments.agent)
        await lane.accept(Prompt("pay"), operation_id="op")
    shutil.copy(path, old)
    async with open_session(path) as session:
        outcome = await (await session.lane("main", payments.agent)).drive("op")
        assert isinstance(outcome, Settled)
    shutil.copy(old, path)
    async with open_session(path) as session:
        await (await session.lane("main", payments.agent)).drive("op")
    assert len(payments.keys) == 2


async def test_a_backup_goes_on_with_the_same_work_under_the_same_keys(place: Place, tmp_path: Path) -> None:
    gate = asyncio.Event()
    payments = Payments("idempotent", gate)
    session = await place.open()
    lane = await session.lane("main", payments.agent)
    driving = asyncio.ensure_future(lane.run("pay", operation_id="op"))
    await payments.began.wait()
    elsewhere = SqliteStore(tmp_path / "backup.db", durability="process")
    for name in ("s", "another"):
        await session.backup(elsewhere, session_id=name)
    gate.set()
    await driving
    for name in ("s", "another"):
        async with open_session(elsewhere, session_id=name) as copy:
            if copy.open_operations():
                await (await copy.lane("main", payments.agent)).drive("op")
    assert len(payments.keys) == 3
    original, same, other = payments.keys
    assert original == same != other
    await elsewhere.close()
    await place.end()


async def test_half_of_an_export_is_refused(place: Place, tmp_path: Path) -> None:
    session = await place.open()
    branch = await session.create_branch("main")
    for number in range(3):
        await branch.append_custom("note", {"n": number})

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 300:
                raise OSError("no room")
            return super().write(data[:200])

    part, file = Full(), tmp_path / "part"
    with pytest.raises(OSError, match="no room"):
        await session.export(part)
    file.write_bytes(part.getvalue())
    assert file.stat().st_size > 0
    with pytest.raises((CorruptSession, InvalidMessage, UnsupportedFormat)):
        await place.store.import_session(file, session_id="new")  # type: ignore[attr-defined]
    assert [each.id for each in await place.store.list()] == ["s"]
    await place.end()


async def test_a_deleted_session_leaves_its_forks_and_a_free_id(place: Place) -> None:
    session = await place.open()
    branch = await session.create_branch("main")
    entry = await branch.append_custom("note", {"n": 1})
    await session.fork(session_id="fork")
    await session.close()
    await place.store.delete("s")
    assert [each.id for each in await place.store.list()] == ["fork"]
    fresh = await place.open("s")
    assert await fresh.entries() == []
    fork = await place.open("fork")
    assert [each.id for each in await fork.entries()] == [entry.id]
    await place.end()
