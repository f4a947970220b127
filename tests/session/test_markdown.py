"""Claim: a branch is exported as Markdown as of the call, entry by entry, on every store, in memory that is bounded."""

from __future__ import annotations

import tracemalloc
from io import StringIO
from pathlib import Path

import pytest

from agentlane import SessionClosed, UnknownBranch
from agentlane.branch import MARKDOWN_PAGE
from agentlane.data.entries import BranchSummary, Compaction, Entry, EntryBody
from agentlane.data.messages import ModelIdentity, user
from agentlane.histories.markdown import markdown_entry, markdown_title
from agentlane.testing import Trace, call
from tests.session.places import Place, agent_of, echo


async def test_the_path_and_nothing_else_is_exported(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of([call("echo", text="so")], "done", tools=[echo]))
    await lane.run("hello")
    aside = await session.create_branch("aside", at=(await lane.entries())[-1].id)
    await aside.append_message(user("elsewhere"))
    await lane.append_custom("note", {"x": 1})
    trace = Trace()
    await session.close()
    place.store = trace.store(place.store)
    session = await place.open(read_only=True)
    branch = session.branch("main")

    text = await branch.export_markdown()

    entries = await branch.entries(newest_first=False)
    assert text == markdown_title("main", "s") + "".join(map(markdown_entry, entries))
    assert [line for line in text.split("\n") if line.startswith("#")] == [
        "# Branch `main` of session `s`",
        "## User · 2023-11-14 22:13:20 UTC",
        "## Assistant · `scripted:scripted` · 2023-11-14 22:13:20 UTC",
        f"### Result of `echo` `{entries[2].body.call_id}` · 2023-11-14 22:13:20 UTC",  # type: ignore[union-attr]
        "## Assistant · `scripted:scripted` · 2023-11-14 22:13:20 UTC",
        "## Entry `note` · 2023-11-14 22:13:20 UTC",
    ]
    assert "elsewhere" not in text
    assert [each for each in trace.events if hasattr(each, "writes")] == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            Compaction(
                summary="a ``` b",
                kept_from="e`7",
                tokens_before=12_345,
                model=ModelIdentity(provider="acme", name="large"),
            ),
            "\n## Summary · `acme:large` · 2023-11-14 22:13:20 UTC\n\n````text\na ``` b\n````\n"
            "\n*The model is shown this, not what came before entry ``e`7``; before it was shown 12,345 tokens*\n",
        ),
        (
            Compaction(summary="all", kept_from=None, tokens_before=1),
            "\n## Summary · 2023-11-14 22:13:20 UTC\n\n```text\nall\n```\n"
            "\n*The model is shown this, not anything that came before; before it was shown 1 tokens*\n",
        ),
        (
            BranchSummary(summary="tried", left="e7"),
            "\n## Summary of another path · 2023-11-14 22:13:20 UTC\n\n```text\ntried\n```\n"
            "\n*Of the path that ends with entry `e7`*\n",
        ),
    ],
)
def test_summaries_say_what_they_stand_for(body: EntryBody, text: str) -> None:
    entry = Entry(id="e9", parent_id="e8", seq=9, at=1_700_000_000_000, body=body)

    assert markdown_entry(entry) == text


@pytest.mark.parametrize("count", [0, 1, MARKDOWN_PAGE, MARKDOWN_PAGE + 1, 3 * MARKDOWN_PAGE])
async def test_pages_of_any_number_meet_each_other(place: Place, count: int, tmp_path: Path) -> None:
    session = await place.open()
    messages = [{"role": "user", "content": f"said {number}"} for number in range(count)]
    await session.import_messages("old", messages, format="openai")
    branch = session.branch("old")

    with (tmp_path / "old.md").open("w", encoding="utf-8", newline="\n") as file:
        await branch.export_markdown(file)

    text = (tmp_path / "old.md").read_text(encoding="utf-8")
    assert text == await branch.export_markdown()
    assert [line for line in text.split("\n") if line.startswith("said")] == [f"said {each}" for each in range(count)]


async def test_what_is_appended_meanwhile_is_not_in_it(memory: Place) -> None:
    session = await memory.open()
    messages = [{"role": "user", "content": "x"} for _ in range(2 * MARKDOWN_PAGE - 1)]
    await session.import_messages("old", messages, format="openai")
    branch = session.branch("old")
    await branch.append_message(user("x"))  # from now on appending reads nothing
    storage, path, pages = session._runtime.storage, session._runtime.storage.path, 0

    async def appending(*args: object, **options: object) -> object:
        nonlocal pages
        rows = await path(*args, **options)  # type: ignore[arg-type]
        pages += 1
        await branch.append_message(user("later"))
        return rows

    storage.path = appending  # type: ignore[method-assign, assignment]
    text = await branch.export_markdown()

    assert pages == 2 and "later" not in text and text.count("## User") == 2 * MARKDOWN_PAGE
    assert (await branch.messages())[-2:] == [user("later"), user("later")]


class Full:
    """A file whose disk is full after so many pieces."""

    def __init__(self, pieces: int) -> None:
        self.taken = 0
        self.pieces = pieces

    def write(self, text: str) -> None:
        if self.taken == self.pieces:
            raise OSError(28, "No space left on device")
        self.taken += 1


async def test_a_file_that_cannot_be_written_is_the_callers_error_and_harms_nothing(place: Place) -> None:
    session = await place.open()
    await session.import_messages("old", [{"role": "user", "content": "x"}] * 20, format="openai")
    branch = session.branch("old")

    for pieces in (0, 5, 20):
        file = Full(pieces)
        with pytest.raises(OSError, match="No space left"):
            await branch.export_markdown(file)
        assert file.taken == pieces

    assert (await branch.export_markdown()).count("## User") == 20
    await session.delete_branch("old")
    with pytest.raises(UnknownBranch):
        await branch.export_markdown()
    await session.close()
    with pytest.raises(SessionClosed):
        await branch.export_markdown(StringIO())


class Counted:
    def __init__(self) -> None:
        self.size = 0

    def write(self, text: str) -> None:
        self.size += len(text)


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_memory_does_not_grow_with_the_branch(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    session = await place.open()
    chat = [{"role": "user", "content": "x" * 10_000}] * 1_000
    await session.import_messages("old", chat, format="openai")
    await session.close()
    session = await place.open()
    branch, file = session.branch("old"), Counted()

    tracemalloc.start()
    try:
        await branch.export_markdown(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await place.end()

    assert file.size > 10_000_000
    assert peak_bytes < 3_000_000, f"{peak_bytes:,} bytes at once"
