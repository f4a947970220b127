"""Claim: a path by segments is the path by parents, in both directions, by pages, with every filter and stop."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlane.storage.segments import NO_ROW, Segments

KINDS = ["message", "compaction", "custom"]

# Per entry: how far back its parent is (0: a root), and its kind.
trees = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(KINDS)), min_size=1, max_size=60)


def grow(tree: list[tuple[int, str]]) -> tuple[Segments, list[int]]:
    segments, parents = Segments(), []
    for row, (back, kind) in enumerate(tree):
        parent = max(row - back, 0) if back and row else NO_ROW
        assert segments.append(parent, kind) == row
        parents.append(parent)
    return segments, parents


def ancestors(parents: list[int], row: int) -> list[int]:
    found = []
    while row != NO_ROW:
        found.append(row)
        row = parents[row]
    return found


def plain_path(
    tree: list[tuple[int, str]],
    parents: list[int],
    start: int,
    *,
    newest_first: bool,
    limit: int | None,
    after: int | None,
    kinds: list[str] | None,
    stop_at: int | None,
    stop_kind: str | None,
) -> list[int]:
    """Rule S16 said once more, without thinking about speed."""
    walked = []
    for row in ancestors(parents, start):
        walked.append(row)
        if row == stop_at or tree[row][1] == stop_kind:
            break
    if not newest_first:
        walked.reverse()
    if after is not None:
        walked = [row for row in walked if (row < after if newest_first else row > after)]
    if kinds is not None:
        walked = [row for row in walked if tree[row][1] in kinds]
    return walked[:limit]


@given(tree=trees, data=st.data())
def test_a_path_by_segments_is_the_path_by_parents(tree: list[tuple[int, str]], data: st.DataObject) -> None:
    segments, parents = grow(tree)
    rows = st.integers(0, len(tree) - 1)
    start = data.draw(rows)
    asked = {
        "newest_first": data.draw(st.booleans()),
        "limit": data.draw(st.none() | st.integers(0, 10)),
        "after": data.draw(st.none() | st.sampled_from(ancestors(parents, start))),
        "kinds": data.draw(st.none() | st.lists(st.sampled_from([*KINDS, "unheard of"]))),
        "stop_at": data.draw(st.none() | rows),
        "stop_kind": data.draw(st.none() | st.sampled_from([*KINDS, "unheard of"])),
    }

    found = segments.path(start, **asked)

    assert [row for row, _, _ in found] == plain_path(tree, parents, start, **asked)
    assert [(parent, kind) for _, parent, kind in found] == [(parents[row], tree[row][1]) for row, _, _ in found]


@given(tree=trees, data=st.data())
def test_on_path_is_being_an_ancestor(tree: list[tuple[int, str]], data: st.DataObject) -> None:
    segments, parents = grow(tree)
    start = data.draw(st.integers(0, len(tree) - 1))
    on_path = set(ancestors(parents, start))

    assert {row for row in range(len(tree)) if segments.on_path(row, start)} == on_path
    assert [segments.parent(row) for row in range(len(tree))] == parents


@pytest.mark.parametrize("page", [1, 2, 7, 100])
@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_join_to_the_whole_path(page: int, newest_first: bool) -> None:
    segments, _ = grow([(1 + row % 3, "message") for row in range(50)])
    whole = [row for row, _, _ in segments.path(49, newest_first=newest_first)]

    joined: list[int] = []
    after = None
    while rows := [row for row, _, _ in segments.path(49, newest_first=newest_first, limit=page, after=after)]:
        joined += rows
        after = rows[-1]

    assert joined == whole


def test_more_kinds_than_codes_are_told_apart() -> None:
    segments = Segments()
    row = NO_ROW
    for number in range(300):
        row = segments.append(row, f"kind-{number}")

    assert [segments.kind(number) for number in (0, 254, 255, 299)] == ["kind-0", "kind-254", "kind-255", "kind-299"]
    assert [found for found, _, _ in segments.path(row, stop_kind="kind-290", limit=1, newest_first=False)] == [290]
    assert [found for found, _, _ in segments.path(row, kinds=["kind-270"])] == [270]
    assert len(segments.path(row, stop_kind="kind-1000")) == 300


def test_an_entry_of_a_long_branch_costs_few_bytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        segments = Segments()
        row = NO_ROW
        for _ in range(20_000):
            row = segments.append(row, "message")
        each = (tracemalloc.get_traced_memory()[0] - before) / 20_000
    finally:
        tracemalloc.stop()

    assert each < 16


def test_a_branch_costs_the_same_however_long_its_history_is() -> None:
    segments = Segments()
    row = NO_ROW
    for _ in range(20_000):
        row = segments.append(row, "message")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            segments.append(row - 10_000, "message")
        each = (tracemalloc.get_traced_memory()[0] - before) / 100
    finally:
        tracemalloc.stop()

    assert each < 600
