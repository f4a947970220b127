"""Claim: the two halves of the suite are the suite, and what one of them says is not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.side_by_side import FIRST, TESTS, halves, names_a_path, worse

FOLDERS = sorted(path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__")


def test_each_folder_is_in_one_half() -> None:
    left = [{each.removeprefix("--ignore=tests/") for each in half} for half in halves(FOLDERS)]

    assert left[0] | left[1] == set(FOLDERS) and not left[0] & left[1]
    assert left[1] == set(FIRST)
    assert [path.name for path in TESTS.glob("test_*.py")] == [], "it would be in both halves"


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([1, 0], 1), ([0, 1], 1), ([5, 0], 0), ([5, 1], 1), ([5, 5], 5), ([0, -9], -9)]
)
def test_the_exit_code_is_that_of_the_half_that_went_worse(codes: list[int], code: int) -> None:
    assert worse(codes) == code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], False),
        (["-q", "--whole"], False),
        (["-k", "torn"], False),
        (["-q", "tests/tools"], True),
        ([f"{Path(__file__).relative_to(TESTS.parent)}::test_each_folder_is_in_one_half"], True),
    ],
)
def test_paths_are_told_from_options(arguments: list[str], named: bool) -> None:
    assert names_a_path(arguments) is named
